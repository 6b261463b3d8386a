-- CASE and the other conditional expressions: COALESCE, NULLIF, GREATEST, LEAST; and the types of their results.

\group Case with conditions
create table parcel (id int primary key, weight numeric(6,2), kind text, zone int, fragile boolean, sent date);
insert into parcel values (1, 0.50, 'letter', 1, false, '2026-03-01'), (2, 2.00, 'box', 2, true, '2026-03-02'), (3, 12.25, 'box', 3, false, null), (4, null, 'pallet', null, null, '2026-03-04');
\try
select case when true then 1 else 2 end;
select case when false then 1 end;
select case when 1 > 2 then 'a' else 'b' end as answer;
select case when null then 1 else 2 end;
select case when true then 'x' end;
select case when true then null else 1 end;
select case when true then 1 else null end;
select case when false then 1 else null end;
select case when true then 1.5 else 2 end;
select case when true then 1 else 2.5 end;
select case when true then 1 else 2::bigint end;
select case when true then 1 else 2::float8 end;
select case when true then '5' else 2 end;
select case when true then 'five' else 2 end;
select case when false then 'five' else 'six' end || '!';
select case when true then true else false end;
select case when 1 = 1 then date '2026-01-01' else date '2026-01-02' end;
select case when 1 then 'x' end;
select case when 'a' then 'x' end;
select case when true then 1 else 'a'::text end;
select case when true then 1 else now() end;
select case end;
select case when true end;
select case when true then 1;
select case else 1 end;
select case when false then 1/0 else 2 end;
select case when 1 = 0 then 1/0 else 2 end as safe;
select id, case when weight < 1 then 'light' when weight < 10 then 'middle' else 'heavy' end as class from parcel order by id;
select id, case when weight < 1 then 'light' when weight < 10 then 'middle' end as class from parcel order by id;
select id, case when weight is null then 0 else weight end as weight from parcel order by id;
select id, case when weight is null then 0 else weight end from parcel order by id;
select id, case when fragile then 'care' else 'any' end from parcel order by id;
select id, case when fragile is null then 'unknown' when fragile then 'yes' else 'no' end as fragile from parcel order by id;
select id, case when kind = 'box' and zone > 2 then zone * 2 else zone end as cost from parcel order by id;
select id, case when kind in ('box', 'pallet') then 1 else 0 end as bulky from parcel order by id;
select id, case when kind like 'b%' then upper(kind) else kind end as kind from parcel order by id;
select id, case when sent is null then 'waiting' else 'sent' end as state from parcel order by id;
select id, case when sent > '2026-03-01' then sent else '2026-01-01' end as d from parcel order by id;
select id, case when exists (select 1 from parcel q where q.id = p.id + 1) then 'more' else 'last' end as next from parcel p order by id;
select id, case when zone = (select max(zone) from parcel) then 'far' else 'near' end as how from parcel order by id;
select id, case when zone > 1 then case when fragile then 'both' else 'far' end else 'no' end as nested from parcel order by id;
select sum(case when kind = 'box' then 1 else 0 end) as boxes from parcel;
select sum(case when kind = 'box' then weight else 0 end) as boxes from parcel;
select count(case when kind = 'box' then 1 end) from parcel;
select kind, sum(case when fragile then 1 else 0 end) as fragile from parcel group by kind order by kind;
select case when zone > 1 then 'far' else 'near' end as z, count(*) from parcel group by 1 order by 1;
select case when count(*) > 3 then 'many' else 'few' end from parcel;
select case when max(weight) > 10 then 'heavy' end as h from parcel;
select id from parcel order by case when kind = 'box' then 0 else 1 end, id;
select id from parcel order by case kind when 'pallet' then 1 when 'box' then 2 else 3 end, id desc;
select id from parcel where case when zone is null then true else zone > 2 end order by id;
select id from parcel where (case when fragile then 1 else 2 end) = 2 order by id;
select case when weight > 1 then id end from parcel order by id;
select case when id = 1 then 'one' when id = 1 then 'uno' end as first from parcel where id = 1;
select id, 1 + case when zone is null then 0 else zone end as z from parcel order by id;
select coalesce(case when id = 1 then null else id end, 100) as c from parcel order by id;
select case when zone between 1 and 2 then 'ab' else 'c' end as letter from parcel order by id;
select (case when true then array[1, 2] else array[3] end)[1];
select case when id > 2 then weight else zone end as mixed from parcel order by id;
select case when unknown_column then 1 end from parcel;
select case when id = 'x' then 1 end from parcel;

\group Case of a value
create table ticket (id int primary key, state char(1), priority int);
insert into ticket values (1, 'o', 1), (2, 'c', 2), (3, 'x', null), (4, null, 3);
\try
select case 1 when 1 then 'one' when 2 then 'two' end;
select case 3 when 1 then 'one' when 2 then 'two' end;
select case 3 when 1 then 'one' else 'many' end as n;
select case null when null then 'null' else 'other' end;
select case 'a' when 'A' then 'upper' when 'a' then 'lower' end as c;
select case 1 when '1' then 'same' else 'other' end;
select case '1' when 1 then 'same' else 'other' end;
select case 1 when 1.0 then 'same' end;
select case true when true then 1 end;
select case 1 when 'a' then 1 end;
select case 2 when 1, 2 then 'x' end;
select id, case state when 'o' then 'open' when 'c' then 'closed' else 'unknown' end as state from ticket order by id;
select id, case state when 'o' then 'open' when 'c' then 'closed' end from ticket order by id;
select id, case priority when 1 then 'now' when 2 then 'soon' else 'later' end as p from ticket order by id;
select id, case state when null then 'none' else state end as s from ticket order by id;
select id, case id % 2 when 0 then 'even' else 'odd' end as parity from ticket order by id;
select id, case upper(state) when 'O' then 1 when 'C' then 2 end as n from ticket order by id;
select id, case priority when (select min(priority) from ticket) then 'first' else '' end as f from ticket order by id;
select case state when 'o' then 'open' else 'done' end as s, count(*) from ticket group by s order by s;
select case count(*) when 4 then 'four' else 'other' end as c from ticket;
select case length('abc') when 3 then 'three' end;
select case when priority = 1 then 'a' else 'b' end = 'a' as is_a from ticket order by id;
select case id when 1 then 10 when 2 then 20 end + 1 as n from ticket order by id;
select max(case state when 'o' then priority end) as m from ticket;
select id from ticket where case state when 'o' then true else false end;
select case $1::int when 1 then 'one' else 'other' end \bind 1
select case when $1 then 'yes' else 'no' end \bind true
select case when $1::text = 'a' then $2::int else 0 end \bind a 7
select id, case state when $1 then 'match' else 'no' end as m from ticket order by id \bind o

\group Coalesce and nullif
create table contact (id int primary key, phone text, mobile varchar(20), extension int, rate numeric(5,2), since date);
insert into contact values (1, '111', null, 5, 1.50, '2026-01-01'), (2, null, '222', null, null, null), (3, null, null, 0, 0.00, null);
\try
select coalesce(1);
select coalesce(null, 1);
select coalesce(null, null);
select coalesce(null, 'a', 'b');
select coalesce(null, 1.5, 2);
select coalesce(1, 2.5);
select coalesce('a', 'b') as c;
select coalesce();
select coalesce(1, 'a');
select coalesce(null, date '2026-05-05');
select coalesce(null::int, 3) + 1;
select coalesce(phone, mobile) from contact order by id;
select coalesce(phone, mobile, 'none') as number from contact order by id;
select coalesce(extension, 0) from contact order by id;
select coalesce(extension, -1) as e from contact order by id;
select coalesce(rate, 0) from contact order by id;
select coalesce(rate, 9.99) as rate from contact order by id;
select coalesce(since, '2000-01-01') as since from contact order by id;
select coalesce(since::text, 'never') from contact order by id;
select coalesce(extension::text, 'none') as e from contact order by id;
select id from contact where coalesce(phone, mobile) is null;
select id from contact order by coalesce(extension, 99), id;
select coalesce(sum(extension), 0) from contact where id > 5;
select coalesce((select phone from contact where id = 9), 'nobody');
select coalesce(phone, '') || coalesce(mobile, '') as both from contact order by id;
select coalesce(extension, 'x') from contact;
select coalesce($1, 'default') \bind NULL
select coalesce($1::int, 5) \bind NULL
select nullif(1, 1);
select nullif(1, 2);
select nullif('a', 'b');
select nullif(null, 1);
select nullif(1, null);
select nullif(0, 0) is null;
select nullif('', '') as empty;
select nullif(1, 'a');
select nullif(1);
select nullif(1, 1.0);
select 10 / nullif(0, 0);
select nullif(extension, 0) from contact order by id;
select id, 100 / nullif(extension, 0) as per from contact order by id;
select nullif(phone, '111') as p from contact order by id;
select nullif(rate, 0) from contact order by id;
select ifnull(1, 2);

\group Greatest and least
create table box (id int primary key, a int, b int, c numeric(4,1), d date, t text);
insert into box values (1, 5, 7, 6.5, '2026-01-01', 'kiwi'), (2, null, 3, 1.0, '2025-01-01', 'apple'), (3, null, null, null, null, null);
\try
select greatest(1, 2, 3);
select least(1, 2, 3);
select greatest(1, null, 3);
select least(null, null);
select greatest('a', 'b');
select greatest(1, 2.5);
select least(1, 2.5);
select greatest(1.0, 2);
select greatest(date '2026-01-01', date '2025-01-01');
select greatest(1);
select greatest();
select greatest(1, 'a');
select least('b', 'a', 'c') as first;
select greatest(a, b) from box order by id;
select least(a, b) from box order by id;
select greatest(a, b, c) as g from box order by id;
select greatest(d, '2025-06-01') from box order by id;
select least(t, 'banana') from box order by id;
select greatest(a, 0) + least(b, 5) as s from box order by id;
select id from box where greatest(a, b) > 5;
select max(greatest(a, b)) from box;
select greatest(true, false);
select greatest(-1, -2) as g, least(-1, -2) as l;
select id from box order by least(a, b) nulls first, id;
select max(1, 2);
select min(1, 2);
