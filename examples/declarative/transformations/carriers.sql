CREATE MATERIALIZED VIEW carriers AS
SELECT carrier, count(*) AS flights, avg(dep_delay) AS mean_delay
FROM flights
GROUP BY carrier;
