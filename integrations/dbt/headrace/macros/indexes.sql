{# The indexes of the config on a result table, and no others that create_index has made of plain columns. #}
{% macro headrace__indexes(relation, name, wanted) %}
  {%- if wanted is none -%}
    {{ return(none) }}
  {%- endif -%}
  {%- set have = headrace.headrace__plain_indexes(relation) -%}
  {%- set definitions = [] -%}
  {%- for each in wanted -%}
    {%- if each.get('unique') -%}
      {{ exceptions.raise_compiler_error("a unique index is no business of a headrace_view: name its columns as key") }}
    {%- endif -%}
    {%- do definitions.append((each.get('type') or 'btree', each['columns'] | list)) -%}
  {%- endfor -%}
  {%- for index in have if (index['type'], index['columns']) not in definitions -%}
    {% do headrace.headrace__call("drop_index(" ~ headrace.headrace__literal(adapter.quote(relation.schema) ~ '.' ~ adapter.quote(index['name'])) ~ ")") %}
  {%- endfor -%}
  {%- for type, columns in definitions -%}
    {%- set same = have | selectattr('type', 'equalto', type) | selectattr('columns', 'equalto', columns) | list -%}
    {%- if same | length == 0 -%}
      {%- set quoted = [] -%}
      {%- for column in columns -%}{%- do quoted.append(adapter.quote(column)) -%}{%- endfor -%}
      {% do headrace.headrace__call("create_index(" ~ name ~ ", " ~ headrace.headrace__literal("USING " ~ type ~ " (" ~ quoted | join(', ') ~ ")") ~ ")") %}
    {%- endif -%}
  {%- endfor -%}
{% endmacro %}


{# Neither keys nor Headrace's own (over an expression), nor what has a predicate, an order or a class of its own. #}
{% macro headrace__plain_indexes(relation) %}
  {%- set found = run_query(
       "select c.relname, m.amname, array_to_json(array_agg(a.attname order by k.n))::text"
       ~ " from pg_catalog.pg_index i join pg_catalog.pg_class c on c.oid = i.indexrelid"
       ~ " join pg_catalog.pg_am m on m.oid = c.relam"
       ~ " cross join lateral unnest(i.indkey::int2[]) with ordinality k (attnum, n)"
       ~ " join pg_catalog.pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.attnum"
       ~ " where i.indrelid = pg_catalog.to_regclass(" ~ headrace.headrace__name(relation) ~ ")"
       ~ " and not i.indisunique and i.indexprs is null and i.indpred is null and 0 = all (i.indoption::int2[])"
       ~ " group by c.relname, m.amname order by c.relname") -%}
  {%- set indexes = [] -%}
  {%- for row in found.rows -%}
    {%- do indexes.append({'name': row[0], 'type': row[1], 'columns': fromjson(row[2])}) -%}
  {%- endfor -%}
  {{ return(indexes) }}
{% endmacro %}
