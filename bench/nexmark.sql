-- NEXMark's queries in Postgres' SQL.  Tumbling and hopping windows are date arithmetic
-- (date_bin, generate_series), sessions are window functions; what orders rows is unique.

-- q0: pass through
SELECT auction, bidder, price, date_time, extra FROM bid

-- q1: currency
SELECT auction, bidder, 0.908 * price AS price, date_time, extra FROM bid

-- q2: selection
SELECT auction, price FROM bid WHERE auction % 7 = 0

-- q3: local items
SELECT p.name, p.city, p.state, a.id
FROM auction a JOIN person p ON a.seller = p.id
WHERE a.category = 10 AND (p.state = 'OR' OR p.state = 'ID' OR p.state = 'CA')

-- q4: average closing price of a category
SELECT category, avg(final) AS avg
FROM (
    SELECT max(b.price) AS final, a.category
    FROM auction a, bid b
    WHERE a.id = b.auction AND b.date_time BETWEEN a.date_time AND a.expires
    GROUP BY a.id, a.category) q
GROUP BY category

-- q5: hot items, hopping windows of 10 s every 2 s
WITH counted AS (
    SELECT b.auction, w AS starts, count(*) AS num
    FROM bid b, generate_series(
        date_bin('2 s', b.date_time, timestamp '2000-01-01') - interval '8 s',
        date_bin('2 s', b.date_time, timestamp '2000-01-01'), interval '2 s') w
    GROUP BY b.auction, w)
SELECT c.auction, c.num, c.starts, c.starts + interval '10 s' AS ends
FROM counted c
JOIN (SELECT starts, max(num) AS most FROM counted GROUP BY starts) m USING (starts)
WHERE c.num >= m.most

-- q6: average price of a seller's last ten closed auctions
SELECT seller, date_time,
    avg(final) OVER (PARTITION BY seller ORDER BY date_time, id
        ROWS BETWEEN 10 PRECEDING AND CURRENT ROW) AS avg
FROM (
    SELECT a.id, a.seller, b.price AS final, b.date_time,
        row_number() OVER (PARTITION BY a.id, a.seller ORDER BY b.price DESC, b.date_time)
            AS place
    FROM auction a, bid b
    WHERE a.id = b.auction AND b.date_time BETWEEN a.date_time AND a.expires) q
WHERE place <= 1

-- q7: highest bid, tumbling windows of 10 s
SELECT b.auction, b.price, b.bidder, b.date_time, b.extra
FROM bid b
JOIN (
    SELECT max(price) AS price,
        date_bin('10 s', date_time, timestamp '2000-01-01') + interval '10 s' AS ends
    FROM bid GROUP BY ends) m ON b.price = m.price
WHERE b.date_time BETWEEN m.ends - interval '10 s' AND m.ends

-- q8: new users who sell at once, tumbling windows of 10 s
SELECT p.id, p.name, p.starts
FROM (
    SELECT id, name, date_bin('10 s', date_time, timestamp '2000-01-01') AS starts
    FROM person GROUP BY id, name, starts) p
JOIN (
    SELECT seller, date_bin('10 s', date_time, timestamp '2000-01-01') AS starts
    FROM auction GROUP BY seller, starts) a ON p.id = a.seller AND p.starts = a.starts

-- q9: winning bids
SELECT * FROM (
    SELECT a.*, b.bidder, b.price, b.date_time AS bid_time, b.extra AS bid_extra,
        row_number() OVER (PARTITION BY a.id ORDER BY b.price DESC, b.date_time) AS place
    FROM auction a, bid b
    WHERE a.id = b.auction AND b.date_time BETWEEN a.date_time AND a.expires) q
WHERE place <= 1

-- q10: log of bids by day and minute
SELECT auction, bidder, price, date_time, extra, to_char(date_time, 'YYYY-MM-DD') AS day,
    to_char(date_time, 'HH24:MI') AS minute
FROM bid

-- q11: sessions of a bidder, closed by 3 s of silence
SELECT bidder, count(*) AS bids, min(date_time) AS starts,
    max(date_time) + interval '3 s' AS ends
FROM (
    SELECT bidder, date_time,
        sum(opens) OVER (PARTITION BY bidder ORDER BY date_time) AS session
    FROM (
        SELECT bidder, date_time,
            CASE WHEN date_time - lag(date_time) OVER (PARTITION BY bidder ORDER BY date_time)
                <= interval '3 s' THEN 0 ELSE 1 END AS opens
        FROM bid) b) s
GROUP BY bidder, session

-- q12: bids of a bidder, tumbling windows of 10 s
SELECT bidder, count(*) AS bids,
    date_bin('10 s', date_time, timestamp '2000-01-01') AS starts,
    date_bin('10 s', date_time, timestamp '2000-01-01') + interval '10 s' AS ends
FROM bid GROUP BY bidder, starts, ends

-- q13: bids beside a table
SELECT b.auction, b.bidder, b.price, b.date_time, s.value
FROM bid b JOIN side_input s ON mod(b.auction, 10) = s.key

-- q14: calculation
SELECT auction, bidder, 0.908 * price AS price,
    CASE WHEN extract(hour FROM date_time) BETWEEN 8 AND 18 THEN 'day'
        WHEN extract(hour FROM date_time) <= 6 OR extract(hour FROM date_time) >= 20
        THEN 'night' ELSE 'other' END AS part,
    date_time, extra, length(extra) - length(replace(extra, 'c', '')) AS cs
FROM bid WHERE 0.908 * price > 1000 AND 0.908 * price < 5000000

-- q15: bidding by day
SELECT to_char(date_time, 'YYYY-MM-DD') AS day, count(*) AS bids,
    count(*) FILTER (WHERE price < 10000) AS low,
    count(*) FILTER (WHERE price >= 10000 AND price < 100000) AS middle,
    count(*) FILTER (WHERE price >= 100000) AS high,
    count(DISTINCT bidder) AS bidders,
    count(DISTINCT bidder) FILTER (WHERE price < 10000) AS low_bidders,
    count(DISTINCT bidder) FILTER (WHERE price >= 100000) AS high_bidders,
    count(DISTINCT auction) AS auctions,
    count(DISTINCT auction) FILTER (WHERE price < 10000) AS low_auctions
FROM bid GROUP BY day

-- q16: channels by day
SELECT channel, to_char(date_time, 'YYYY-MM-DD') AS day,
    max(to_char(date_time, 'HH24:MI')) AS minute, count(*) AS bids,
    count(*) FILTER (WHERE price < 10000) AS low,
    count(DISTINCT bidder) FILTER (WHERE price >= 10000) AS bidders,
    count(DISTINCT auction) AS auctions
FROM bid GROUP BY channel, day

-- q17: auctions by day
SELECT auction, to_char(date_time, 'YYYY-MM-DD') AS day, count(*) AS bids,
    count(*) FILTER (WHERE price < 10000) AS low, min(price) AS min_price,
    max(price) AS max_price, avg(price) AS avg_price, sum(price) AS sum_price
FROM bid GROUP BY auction, day

-- q18: a bidder's last bid on an auction
SELECT auction, bidder, price, channel, url, date_time, extra
FROM (
    SELECT *, row_number() OVER (PARTITION BY bidder, auction ORDER BY date_time DESC) AS place
    FROM bid) q
WHERE place <= 1

-- q19: the three highest bids of an auction
SELECT * FROM (
    SELECT *, row_number() OVER (PARTITION BY auction ORDER BY price DESC, date_time) AS place
    FROM bid) q
WHERE place <= 3

-- q20: bids with their auction
SELECT b.*, a.item_name, a.description, a.initial_bid, a.reserve, a.date_time AS opened,
    a.expires, a.seller, a.category
FROM bid b JOIN auction a ON b.auction = a.id WHERE a.category = 10

-- q21: channels by name or address
SELECT auction, bidder, price, channel,
    CASE lower(channel) WHEN 'apple' THEN '0' WHEN 'google' THEN '1' WHEN 'facebook' THEN '2'
        WHEN 'baidu' THEN '3' ELSE (regexp_match(url, '(&|^)channel_id=([^&]*)'))[2] END AS id
FROM bid
WHERE (regexp_match(url, '(&|^)channel_id=([^&]*)'))[2] IS NOT NULL
    OR lower(channel) IN ('apple', 'google', 'facebook', 'baidu')

-- q22: directories of an address
SELECT auction, bidder, price, channel, split_part(url, '/', 4) AS dir1,
    split_part(url, '/', 5) AS dir2, split_part(url, '/', 6) AS dir3
FROM bid
