{# dbt run-operation headrace_drop --args '{name: analytics.revenue}': before a model gets another materialization. #}
{% macro headrace_drop(name) %}
  {% do headrace.headrace__settle() %}
  {% do headrace.headrace__call("drop_view(" ~ headrace.headrace__literal(name) ~ ", if_exists => true)") %}
{% endmacro %}


{# dbt run-operation headrace_verify --args '{name: analytics.revenue}': proves the table against its query. #}
{% macro headrace_verify(name) %}
  {% do headrace.headrace__settle() %}
  {% call statement('headrace_verify', fetch_result=True, auto_begin=False) -%}
    CALL headrace.verify({{ headrace.headrace__literal(name) }})
  {%- endcall %}
  {%- set answer = load_result('headrace_verify')['data'] -%}
  {%- set differences = answer[0][0] if answer else none -%}
  {%- if differences and differences not in ('{}', '[]') -%}
    {{ exceptions.raise_compiler_error(name ~ " differs from its query: " ~ differences) }}
  {%- endif -%}
  {{ log(name ~ " shows exactly what its query does", info=True) }}
{% endmacro %}
