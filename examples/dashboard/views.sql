-- The views behind the board.  Whoever looks reads a few rows of a table, however many orders there are.
CREATE TABLE IF NOT EXISTS customers (id int PRIMARY KEY, country text NOT NULL);
CREATE TABLE IF NOT EXISTS orders (
    id bigint PRIMARY KEY,
    customer_id int NOT NULL REFERENCES customers,
    amount numeric(10, 2) NOT NULL,
    status text NOT NULL DEFAULT 'open',
    created_at timestamptz NOT NULL DEFAULT now()
);

CALL headrace.create_view('orders_by_minute', $$
    SELECT date_trunc('minute', created_at, 'UTC') AS minute, count(*) AS orders, sum(amount) AS amount
      FROM orders WHERE created_at > now() - interval '1 hour'
     GROUP BY 1 $$);

CALL headrace.create_view('revenue_by_country', $$
    SELECT c.country, count(*) AS orders, sum(o.amount) AS amount
      FROM orders o JOIN customers c ON c.id = o.customer_id
     WHERE o.status <> 'cancelled'
     GROUP BY c.country $$);

CALL headrace.create_view('open_orders', $$
    SELECT count(*) AS orders, coalesce(sum(amount), 0) AS amount FROM orders WHERE status = 'open' $$);
