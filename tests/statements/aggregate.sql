-- Aggregates: of whole tables and of groups, with filters, orders and distinct values, over none and over missing values.

\group Whole tables
create table reading (id int primary key, place text, kind text, value numeric(8,2), level int, ratio double precision, good boolean, taken date);
insert into reading values
  (1, 'lake', 'ph', 7.20, 3, 0.5, true, '2026-01-01'),
  (2, 'lake', 'ph', 6.80, 4, 0.25, true, '2026-01-02'),
  (3, 'lake', 'temp', 12.50, 9, 1.5, false, '2026-01-02'),
  (4, 'river', 'ph', 7.90, 2, 2, true, '2026-01-01'),
  (5, 'river', 'temp', null, null, null, null, null),
  (6, 'pond', 'temp', 15.00, 9, 0.125, false, '2026-01-05');
create table hollow (n int, x numeric, t text);
\try
select count(*) from reading;
select count(value) from reading;
select count(1) from reading;
select count(distinct place) from reading;
select count(distinct level) as levels from reading;
select count(*) as n, count(value) as v from reading;
select sum(level) from reading;
select sum(value) from reading;
select sum(ratio) from reading;
select sum(distinct level) from reading;
select sum(level) / count(level) from reading;
select avg(level) from reading;
select avg(value) from reading;
select avg(ratio) from reading;
select avg(level)::int from reading;
select round(avg(level), 2) from reading;
select round(avg(value), 1) as mean from reading;
select min(value), max(value) from reading;
select min(level), max(level) from reading;
select min(place), max(place) from reading;
select min(taken), max(taken) from reading;
select max(ratio) - min(ratio) from reading;
select max(taken) - min(taken) from reading;
select bool_and(good), bool_or(good) from reading;
select every(good) from reading;
select max(good) from reading;
select string_agg(place, ',') from (select distinct place from reading order by place) as s;
select string_agg(place, ', ' order by id) from reading;
select string_agg(distinct place, ',' order by place) from reading;
select string_agg(id::text, '-' order by id desc) from reading;
select array_agg(id order by id) from reading;
select array_agg(place order by id) from reading where id < 3;
select array_agg(distinct kind) from reading;
select array_agg(value order by id) from reading;
select json_agg(id order by id) from reading;
select jsonb_agg(place order by id) from reading where id < 3;
select json_object_agg(id, place order by id) from reading where id < 3;
select stddev(level) from reading;
select stddev_pop(level) from reading;
select variance(level) from reading;
select var_pop(level) from reading;
select var_samp(ratio) from reading;
select round(stddev(value), 3) from reading;
select corr(level, ratio) from reading;
select regr_slope(level, ratio) from reading;
select covar_pop(level, ratio) from reading;
select percentile_cont(0.5) within group (order by value) from reading;
select percentile_cont(0.5) within group (order by ratio) from reading;
select percentile_disc(0.5) within group (order by level) from reading;
select mode() within group (order by level) from reading;
select bit_and(level), bit_or(level) from reading;
select count(*) filter (where good) from reading;
select count(*) filter (where good) as good, count(*) filter (where not good) as bad from reading;
select sum(level) filter (where place = 'lake') from reading;
select sum(case when good then 1 else 0 end) from reading;
select sum(good::int) from reading;
select avg(value) filter (where kind = 'ph') as mean_ph from reading;
select sum(level * 2 + 1) from reading;
select sum(level) + 1 as more from reading;
select -sum(level) from reading;
select coalesce(sum(level), 0) from reading where place = 'sea';
select count(*) from reading where value is null;
select max(length(place)) from reading;
select count(place || kind) from reading;
select sum(1) from reading;
select sum(0.1) from generate_series(1, 10);
select sum(n) from generate_series(1, 100) as n;
select avg(n) from generate_series(1, 4) as n;
select count(*) from hollow;
select sum(n) from hollow;
select avg(n), min(n), max(n) from hollow;
select sum(n), sum(x), string_agg(t, ',') from hollow;
select array_agg(n) from hollow;
select bool_and(n > 0) from hollow;
select count(distinct n) from hollow;
select max(t) from hollow;
select coalesce(max(n), -1) from hollow;
select sum(level::bigint) from reading;
select sum(level::smallint) from reading;
select sum(level::numeric) from reading;
select sum(level::real) from reading;
select max(level::bigint) from reading;
select any_value(place) from reading;
select nosuchaggregate(level) from reading;
select sum(place) from reading;
select avg(place) from reading;
select sum() from reading;
select count() from reading;
select sum(level, 1) from reading;
select max(sum(level)) from reading;
select level from reading where sum(level) > 1;
select place, count(*) from reading;
select level + sum(level) from reading;
select count(distinct *) from reading;
select string_agg(place) from reading;

\group Groups
create table reading (id int primary key, place text, kind text, value numeric(8,2), level int, good boolean, taken date);
insert into reading values
  (1, 'lake', 'ph', 7.20, 3, true, '2026-01-01'),
  (2, 'lake', 'ph', 6.80, 4, true, '2026-01-02'),
  (3, 'lake', 'temp', 12.50, 9, false, '2026-02-02'),
  (4, 'river', 'ph', 7.90, 2, true, '2026-01-01'),
  (5, 'river', 'temp', null, null, null, null),
  (6, null, 'temp', 15.00, 9, false, '2026-02-05');
\try
select place, count(*) from reading group by place order by place;
select place, count(*) from reading group by place order by place nulls first;
select place, count(*) from reading group by place order by count(*) desc, place;
select place, sum(level) from reading group by place order by place;
select place, sum(value) as total from reading group by place order by total desc nulls last;
select place, avg(level) from reading group by place order by place;
select place, round(avg(value), 2) as mean from reading group by place order by place;
select place, min(value), max(value) from reading group by place order by place;
select place, kind, count(*) from reading group by place, kind order by place, kind;
select kind from reading group by kind order by kind;
select kind as k, count(*) as n from reading group by k order by k;
select kind, count(*) from reading group by 1 order by 1;
select upper(kind), count(*) from reading group by upper(kind) order by 1;
select upper(kind) as u, count(*) from reading group by u order by u;
select good, count(*) from reading group by good order by good;
select level > 3 as high, count(*) from reading group by level > 3 order by 1;
select case when level > 3 then 'high' else 'low' end as l, count(*) from reading group by l order by l;
select extract(month from taken) as m, count(*) from reading group by m order by m;
select date_trunc('month', taken) as m, count(*) from reading group by 1 order by 1;
select taken, count(*) from reading group by taken order by taken;
select place, count(*) from reading group by place having count(*) > 1 order by place;
select place from reading group by place having sum(level) > 5 order by place;
select kind, sum(level) as s from reading group by kind having s > 1;
select kind, sum(level) from reading where good group by kind;
select place, string_agg(kind, ',' order by id) from reading group by place order by place;
select place, array_agg(id order by id) from reading group by place order by place;
select place, bool_and(good) from reading group by place order by place;
select place, count(distinct kind) from reading group by place order by place;
select place, count(*) filter (where kind = 'ph') as ph from reading group by place order by place;
select place, max(taken) from reading group by place order by place;
select id, place, count(*) from reading group by id order by id;
select place, id from reading group by place;
select place, level from reading group by place, level order by place, level;
select place, kind, sum(level) from reading group by rollup (place, kind) order by place, kind;
select place, kind, sum(level) from reading group by cube (place, kind) order by place, kind;
select place, kind, count(*) from reading group by grouping sets ((place), (kind), ()) order by place, kind;
select place, grouping(place), count(*) from reading group by rollup (place) order by grouping(place), place;
select kind, percentile_cont(0.5) within group (order by value) from reading group by kind order by kind;
select place, json_agg(kind order by id) from reading group by place order by place;
select count(*) from (select place from reading group by place) as g;
select max(n) from (select count(*) as n from reading group by kind) as g;
select kind, sum(count(*)) over () from reading group by kind order by kind;
select kind, count(*) * 100 / sum(count(*)) over () as share from reading group by kind order by kind;
select place || '/' || kind as path, count(*) from reading group by place, kind order by path;
select sum(level), place from reading group by place order by sum(level);
select 1 from reading group by ();
select count(*) from reading group by nothing;
select count(*) from reading having count(*) > 100;
select count(*) from reading having count(*) > 1;
select place from reading having count(*) > 1;
select kind, count(*) from reading group by sum(level);
select kind, count(*) from reading group by 3;
select distinct count(*) from reading group by place order by 1;
select place, count(*) as n from reading group by place order by n desc, place limit 1;
select kind, sum(level) from reading group by kind order by max(value);
select kind, sum(value) / count(*) as per from reading group by kind order by kind;
select coalesce(place, 'all') as p, count(*) from reading group by p order by p;
select length(place) as l, count(*) from reading group by length(place) order by l;
select level % 2 as odd, count(*) from reading group by odd order by odd;
select value::int as v, count(*) from reading group by v order by v;
select true as t, count(*) from reading group by t;
