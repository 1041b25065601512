-- A board in psql: anew every two seconds, until Ctrl-C.
\pset footer off
SELECT r.country, r.orders, r.amount, round(100 * r.amount / nullif(sum(r.amount) OVER (), 0), 1) AS "%",
       (SELECT orders FROM open_orders) AS "open",
       (SELECT max(lag_ms) FROM headrace.list_views()) AS "ms late"
  FROM revenue_by_country r ORDER BY r.amount DESC
\watch 2
