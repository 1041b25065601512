{#
  Materialization headrace_view: the model's query becomes a view of Headrace, an ordinary table that
  follows every transaction.

  Config, all of it optional:

    key: [a, b]            columns of the primary key; [] for none; left out: what the query proves
    history: '2 hours'     how long changes are kept (view_changes, feeds)
    latency_ms: 1000       how late it may be
    placement: w1          the worker that computes it
    headrace: {...}        any other option of create_view, by its name
    indexes: [{columns: [a], type: btree}]   as with dbt-postgres; unique ones are no business of a view
    grants: {select: [role]}                 as with dbt
    wait: '60 s'           how long the run waits until a view that is there covers what was committed
                           before; false: not at all

  A run makes what is not there, and of what is there only what differs:

    nothing differs          waits until it is fresh, and says so
    another query            create_view(…, replace => true) where this Headrace has it (which does nothing where
                             only the text is another); else alter_view, of
                             the same columns; else the view is dropped and made anew
    history, latency_ms, placement, indexes, grants    in place
    another key or option    as another query of other columns
    --full-refresh           filled anew: in its table (resync_view), or made anew where something differs
#}
{% materialization headrace_view, adapter='postgres' %}
  {%- set existing = load_cached_relation(this) -%}
  {%- set target_relation = this.incorporate(type='table') -%}
  {%- set query = headrace.headrace__query(sql) -%}
  {%- set wanted = headrace.headrace__options(config) -%}

  {{ run_hooks(pre_hooks, inside_transaction=False) }}
  {{ run_hooks(pre_hooks, inside_transaction=True) }}
  {% do headrace.headrace__settle() %}

  {%- set known = headrace.headrace__known(target_relation) -%}
  {%- set name = headrace.headrace__name(target_relation) -%}
  {%- set full = should_full_refresh() -%}
  {%- set did = 'nothing' -%}

  {% if known is none %}
    {% if existing is not none %}
      {# What another materialization had made of this model. #}
      {% do adapter.drop_relation(existing) %}
      {% do headrace.headrace__settle() %}
    {% endif %}
    {% do headrace.headrace__create(name, query, wanted) %}
    {% set did = 'CREATE VIEW' %}
  {% else %}
    {%- set other = headrace.headrace__fixed(wanted) != headrace.headrace__fixed(known['options']) -%}
    {%- set altered = known['query'] != query -%}
    {% if (altered or other) and headrace.headrace__replaces() %}
      {# What has a verb of its own is left as it is here, and changed by that. #}
      {% set options = headrace.headrace__fixed(wanted) %}
      {% for option in ('history', 'latency_ms', 'placement') if option in known['options'] %}
        {% do options.update({option: known['options'][option]}) %}
      {% endfor %}
      {% do headrace.headrace__replace(name, query, options) %}
      {% do headrace.headrace__adapt(name, wanted, known['options']) %}
      {% set did = 'REPLACE VIEW' %}
    {% elif other or (altered and not headrace.headrace__same_columns(target_relation, query)) %}
      {% do headrace.headrace__call("drop_view(" ~ name ~ ")") %}
      {% do headrace.headrace__create(name, query, wanted) %}
      {% set did = 'CREATE VIEW AGAIN' %}
    {% else %}
      {% if altered %}
        {% do headrace.headrace__call("alter_view(" ~ name ~ ", " ~ headrace.headrace__literal(query) ~ ")") %}
        {% set did = 'ALTER VIEW' %}
      {% elif full %}
        {% do headrace.headrace__call("resync_view(" ~ name ~ ")") %}
        {% set did = 'RESYNC VIEW' %}
      {% endif %}
      {% do headrace.headrace__adapt(name, wanted, known['options']) %}
    {% endif %}
  {% endif %}

  {% do headrace.headrace__indexes(target_relation, name, config.get('indexes', none)) %}
  {% if did in ('nothing', 'REPLACE VIEW') and config.get('wait', '60 s') %}
    {% do headrace.headrace__call("wait_for(" ~ name ~ ", timeout => " ~ headrace.headrace__literal(config.get('wait', '60 s')) ~ ")") %}
  {% endif %}

  {# From here on in a transaction. #}
  {% call statement('main') -%}
    select 1
  {%- endcall %}
  {% do store_raw_result(name='main', message=did if did != 'nothing' else 'UP TO DATE', code='OK', rows_affected='-1') %}
  {%- set should_revoke = should_revoke(existing, full_refresh_mode=(did in ('CREATE VIEW', 'CREATE VIEW AGAIN'))) -%}
  {% do apply_grants(target_relation, config.get('grants'), should_revoke=should_revoke) %}
  {{ run_hooks(post_hooks, inside_transaction=True) }}
  {% do adapter.commit() %}
  {{ run_hooks(post_hooks, inside_transaction=False) }}

  {{ return({'relations': [target_relation]}) }}
{% endmaterialization %}


{# The statement as Headrace gets it: what it is compared by at the next run, too. #}
{% macro headrace__query(sql) %}
  {%- set text = sql.strip() -%}
  {%- if text.endswith(';') -%}
    {%- set text = text[:-1].strip() -%}
  {%- endif -%}
  {{ return(text) }}
{% endmacro %}


{% macro headrace__options(config) %}
  {%- set options = {} -%}
  {%- do options.update(config.get('headrace', {})) -%}
  {%- for name in ('key', 'history', 'latency_ms', 'placement') -%}
    {%- set value = config.get(name, none) -%}
    {%- if value is not none -%}
      {%- do options.update({name: value}) -%}
    {%- endif -%}
  {%- endfor -%}
  {{ return(options) }}
{% endmacro %}


{# Those that no verb changes in place; 'block' is a matter of the call. #}
{% macro headrace__fixed(options) %}
  {%- set fixed = {} -%}
  {%- for name, value in options.items() if name not in ('history', 'latency_ms', 'placement', 'block') -%}
    {%- do fixed.update({name: value}) -%}
  {%- endfor -%}
  {{ return(fixed) }}
{% endmacro %}


{# The view of this name, if there is one: its query and options. #}
{% macro headrace__known(relation) %}
  {%- set there = run_query("select pg_catalog.to_regclass('headrace.views') is not null") -%}
  {%- if not there.rows[0][0] -%}
    {{ exceptions.raise_compiler_error(
         "there is no Headrace in database " ~ relation.database ~ ": start it on this database first (headrace start)") }}
  {%- endif -%}
  {%- set found = run_query(
       "select query, options::text from headrace.views where schema_name = "
       ~ headrace.headrace__literal(relation.schema) ~ " and view_name = " ~ headrace.headrace__literal(relation.identifier)) -%}
  {%- if found.rows | length == 0 -%}
    {{ return(none) }}
  {%- endif -%}
  {{ return({'query': found.rows[0][0], 'options': fromjson(found.rows[0][1])}) }}
{% endmacro %}


{% macro headrace__same_columns(relation, query) %}
  {%- set have = adapter.get_columns_in_relation(relation) | map(attribute='name') | list -%}
  {%- set want = adapter.get_column_schema_from_query(get_empty_subquery_sql(query)) | map(attribute='name') | list -%}
  {% do headrace.headrace__settle() %}
  {{ return(have == want) }}
{% endmacro %}


{% macro headrace__replaces() %}
  {%- set found = run_query(
       "select count(*) from pg_catalog.pg_proc where proname = 'create_view' and 'replace' = any (proargnames)"
       ~ " and pronamespace = pg_catalog.to_regnamespace('headrace')") -%}
  {{ return(found.rows[0][0] | int > 0) }}
{% endmacro %}


{% macro headrace__create(name, query, options) %}
  {% do headrace.headrace__call("create_view(" ~ name ~ ", " ~ headrace.headrace__literal(query)
        ~ ", " ~ headrace.headrace__literal(tojson(options)) ~ ")") %}
{% endmacro %}


{% macro headrace__replace(name, query, options) %}
  {% do headrace.headrace__call("create_view(" ~ name ~ ", " ~ headrace.headrace__literal(query)
        ~ ", " ~ headrace.headrace__literal(tojson(options)) ~ ", replace => true)") %}
{% endmacro %}


{# What a verb changes in place. #}
{% macro headrace__adapt(name, wanted, have) %}
  {%- if not headrace.headrace__same_interval(wanted.get('history'), have.get('history')) -%}
    {%- if wanted.get('history') is none -%}
      {% do headrace.headrace__call("set_history(" ~ name ~ ")") %}
    {%- else -%}
      {% do headrace.headrace__call("set_history(" ~ name ~ ", " ~ headrace.headrace__literal(wanted['history']) ~ ")") %}
    {%- endif -%}
  {%- endif -%}
  {%- if (wanted.get('latency_ms') or 0) | int != (have.get('latency_ms') or 0) | int -%}
    {% do headrace.headrace__call("set_latency(" ~ name ~ ", " ~ ((wanted.get('latency_ms') or 0) | int) ~ ")") %}
  {%- endif -%}
  {%- if (wanted.get('placement') or 'main') != (have.get('placement') or 'main') -%}
    {% do headrace.headrace__call("set_placement(" ~ name ~ ", " ~ headrace.headrace__literal(wanted.get('placement') or 'main') ~ ")") %}
  {%- endif -%}
{% endmacro %}


{# '60 minutes' is an hour; none is no history. #}
{% macro headrace__same_interval(one, other) %}
  {%- if one is none or other is none -%}
    {{ return(one is none and other is none) }}
  {%- endif -%}
  {%- set found = run_query("select " ~ headrace.headrace__literal(one) ~ "::interval = "
                            ~ headrace.headrace__literal(other) ~ "::interval") -%}
  {{ return(found.rows[0][0]) }}
{% endmacro %}
