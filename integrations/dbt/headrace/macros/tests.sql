{# Generic test headrace_follows: the view runs, and is not later than max_lag_ms. #}
{% test headrace_follows(model, max_lag_ms=none) %}
  select name, status, message, lag_ms
    from headrace.list_views()
   where name = pg_catalog.format('%I.%I', {{ headrace.headrace__literal(model.schema) }}, {{ headrace.headrace__literal(model.identifier) }})
     and (status <> 'running'{% if max_lag_ms is not none %} or lag_ms > {{ max_lag_ms }}{% endif %})
  union all
  select {{ headrace.headrace__literal(model.schema ~ '.' ~ model.identifier) }}, 'missing', 'it is no view of Headrace', null
   where not exists (
         select from headrace.list_views()
          where name = pg_catalog.format('%I.%I', {{ headrace.headrace__literal(model.schema) }}, {{ headrace.headrace__literal(model.identifier) }}))
{% endtest %}
