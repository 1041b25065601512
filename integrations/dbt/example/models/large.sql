{{ config(materialized='headrace_view') }}
select country from {{ ref('revenue') }} where amount > 400;
