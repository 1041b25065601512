{{ config(
    materialized='headrace_view',
    key=['country'],
    indexes=[{'columns': ['orders']}],
    grants={'select': ['pg_read_all_data']},
) }}
select c.country, count(*) as orders, sum(o.amount) as amount
  from {{ source('shop', 'orders') }} o
  join {{ source('shop', 'customers') }} c on c.id = o.customer_id
 group by c.country
