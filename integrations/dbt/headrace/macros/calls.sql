{# How SQL is written and sent. #}

{% macro headrace__literal(value) %}
  {{- return("'" ~ (value | string).replace("'", "''") ~ "'") -}}
{% endmacro %}


{# A relation as an argument of Headrace's procedures. #}
{% macro headrace__name(relation) %}
  {{ return(headrace.headrace__literal(adapter.quote(relation.schema) ~ '.' ~ adapter.quote(relation.identifier))) }}
{% endmacro %}


{# End the transaction that is open, if one is: what is called commits by itself, and may stand in none. #}
{% macro headrace__settle() %}
  {% call statement('headrace_settle', auto_begin=True) -%}
    select 1
  {%- endcall %}
  {% do adapter.commit() %}
{% endmacro %}


{# REQUIRES: no transaction is open (headrace__settle). #}
{% macro headrace__call(what) %}
  {% call statement('headrace_call', auto_begin=False) -%}
    CALL headrace.{{ what }}
  {%- endcall %}
{% endmacro %}
