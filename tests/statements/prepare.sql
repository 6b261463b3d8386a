-- Prepared statements: PREPARE and EXECUTE in SQL, and Parse, Bind and Describe of the protocol, with the types of parameters.

\group Prepare and execute
create table item (id int primary key, name text, price numeric(6,2), made date);
insert into item values (1, 'pen', 1.50, '2026-01-01'), (2, 'ink', 3.00, '2026-01-02'), (3, 'pad', 2.25, null);
\try
prepare all_items as select id, name from item order by id;
execute all_items;
execute all_items;
prepare one (int) as select name from item where id = $1;
execute one (1);
execute one(2);
execute one (99);
execute one ('3');
execute one ('x');
execute one (1 + 1);
execute one;
execute one (1, 2);
execute one (null);
prepare two (int, text) as select id from item where id > $1 and name <> $2 order by id;
execute two (1, 'ink');
prepare untyped as select name from item where id = $1;
execute untyped (1);
execute untyped ('2');
prepare text_one as select $1 || '!' as t;
execute text_one ('a');
prepare sum_of (int, int) as select $1 + $2 as sum;
execute sum_of (2, 3);
prepare date_one (date) as select id from item where made = $1;
execute date_one ('2026-01-02');
prepare adder (int, text, numeric) as insert into item values ($1, $2, $3);
execute adder (4, 'cap', 0.75);
execute adder (4, 'cap', 0.75);
prepare changer as update item set price = price + $1 where id = $2;
execute changer (1, 1);
select price from item where id = 1;
prepare remover (int) as delete from item where id = $1 returning name;
execute remover (4);
execute remover (4);
prepare list (int[]) as select id from item where id = any($1) order by id;
execute list ('{1,3}');
execute list (array[2]);
prepare all_items as select 1;
deallocate all_items;
execute all_items;
prepare all_items as select count(*) from item;
execute all_items;
deallocate prepare all_items;
deallocate nosuch;
execute nosuch;
prepare bad as select nothing from item;
prepare bad as selekt 1;
prepare bad as select $1 from nowhere;
prepare ddl as create table x (a int);
prepare vals as values (1), (2);
execute vals;
prepare withit (int) as with x as (select $1 as n) select n from x;
execute withit (7);
select name, parameter_types::text from pg_prepared_statements where name = 'two';
select count(*) > 0 from pg_prepared_statements;
deallocate all;
execute one (1);
select count(*) from pg_prepared_statements;
prepare later as select name, id from item where id = 1;
alter table item rename column made to created;
execute later;
prepare star as select * from item where id = 1;
alter table item add column more int;
execute star;
deallocate star;
create table copied as execute later;
explain execute later;
begin;
prepare inside as select 1;
rollback;
execute inside;

\group Parameters
create table person (id int primary key, name text, age int, height real, weight double precision, salary numeric(10,2), active boolean, born date, seen timestamp, nick varchar(10), big bigint, small smallint);
insert into person values (1, 'Ann', 30, 1.5, 60.25, 1000.50, true, '1996-01-31', '2026-01-01 10:00:00', 'annie', 5000000000, 7), (2, 'Bob', 40, 1.75, 80, 2000, false, '1986-05-05', '2026-01-02 11:30:00', null, 1, 2);
\try
select $1 \bind hello
select $1::int \bind 5
select $1::text \bind 5
select $1::int + 1 as n \bind 41
select $1::numeric \bind 1.50
select $1::float8 \bind 0.5
select $1::boolean \bind true
select $1::boolean \bind yes
select $1::date \bind 2026-02-03
select $1::date + 1 as next \bind 2026-02-28
select $1::timestamp \bind '2026-01-01 10:20:30'
select $1::interval \bind '1 day'
select $1::int[] \bind {1,2,3}
select $1::uuid \bind a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11
select $1::json \bind '{"a": 1}'
select $1::bytea \bind '\x0102'
select $1::int \bind NULL
select $1 is null \bind NULL
select $1::int is null as missing \bind NULL
select $1::int \bind abc
select $1::int \bind 99999999999
select $1::smallint \bind 40000
select $1::date \bind someday
select $1::boolean \bind perhaps
select $1::uuid \bind notauuid
select $1 + 1 \bind 5
select $1 + $2 \bind 5 6
select $1 + 1.5 \bind 5
select $1 || 'x' \bind a
select $2 || $1 \bind a b
select $1::text, $1::text \bind a
select upper($1) \bind abc
select length($1) \bind hello
select coalesce($1, 'none') \bind NULL
select $1 = 'a' \bind a
select $1 = 5 as five \bind 5
select $1 in ('a', 'b') as found \bind b
select 5 between $1 and $2 \bind 1 9
select name from person where id = $1 \bind 1
select name from person where id = $1 \bind x
select name from person where name = $1 \bind Bob
select name from person where age > $1 order by id \bind 35
select name from person where height > $1 \bind 1.6
select name from person where weight < $1 \bind 70.5
select name from person where salary >= $1 \bind 1500
select name from person where active = $1 \bind t
select name from person where born = $1 \bind 1996-01-31
select name from person where seen > $1 \bind '2026-01-02'
select name from person where nick = $1 \bind annie
select name from person where big = $1 \bind 5000000000
select name from person where small = $1 \bind 7
select name from person where id = any($1) order by id \bind {1,2}
select name from person where name = any($1) \bind '{"Bob","Cid"}'
select name from person where id in ($1, $2) order by id \bind 1 2
select name from person where name like $1 \bind A%
select name from person order by id limit $1 \bind 1
select name from person order by id limit $1 offset $2 \bind 1 1
select name from person where ($1::int is null or id = $1) order by id \bind NULL
select name from person where id = $1 or id = $1 + 1 order by id \bind 1
insert into person (id, name, age) values ($1, $2, $3) \bind 3 Cid 50
insert into person (id, name, salary, active, born) values ($1, $2, $3, $4, $5) returning salary, active, born \bind 4 Dee 10.5 f 2000-02-29
insert into person (id, age) values ($1, $2) \bind 5 old
insert into person (id, born) values ($1, $2) \bind 5 never
insert into person (id, nick) values ($1, $2) \bind 5 'much too long'
update person set age = $2 where id = $1 \bind 3 51
update person set age = age + $1 where id = 3 returning age \bind 1
delete from person where id = $1 \bind 4
select count(*) from person where age = $1 or $1 is null \bind NULL
select $1 \bind
select $1, $2 \bind a
select $1 \bind a b
select $2::int \bind 1 2
select 1 \bind
select 1 + 1 as two \bind
select count(*) from person \bind
select sum(age) from person \bind
select name, age from person where id = 1 \bind
create table made (a int) \bind
begin \bind
commit \bind
select 1\; select 2 \bind
select nothing from person \bind
selekt 1 \bind

\group Descriptions
create table t (i int, b bigint, s smallint, n numeric(5,1), r real, d double precision, x text, v varchar(5), c char(3), f boolean, day date, tim time, ts timestamp, tz timestamptz, iv interval, u uuid, j json, jb jsonb, by bytea, ia int[]);
\try
select * from t \parse d1
select i + 1, b + 1, s + 1, n + 1, r + 1, d + 1 from t \parse d2
select i / 2 as a, i * b as p, i * n as q, n * d as z from t \parse d3
select x || 'a', v || 'a', upper(v), length(c) from t \parse d4
select count(*), sum(i), sum(b), sum(n), sum(d), avg(i), avg(d), min(x), max(day) from t \parse d5
select i = 1, x like 'a', f and true, i is null from t \parse d6
select day + 1, day - day, ts - ts, ts + iv, now() from t \parse d7
select case when f then i else s end as c, coalesce(v, 'x') as v2, nullif(i, 0) as ni from t \parse d8
select 1, 'a', 1.5, true, null \parse d9
select i::text, x::int, n::int, i::numeric, day::text from t \parse d10
insert into t (i, x) values ($1, $2) \parse p1
select i from t where i = $1 and x = $2 and day > $3 and n < $4 \parse p2
update t set n = $1, f = $2, ts = $3 where b = $4 \parse p3
select $1::int, $2::text, $3::date \parse p4
select $1 \parse p5
select i from t limit $1 offset $2 \parse p6
select i from t where x in ($1, $2) and i = any($3) \parse p7
select coalesce(i, $1), case when f then $2 else x end from t \parse p8
delete from t where u = $1 returning i, x \parse p9
insert into t (i, n, day) values ($1, $2, $3) returning * \parse p10
select abs($1), lower($2) \parse p11
select i from t where i between $1 and $2 \parse p12
select i from t where ts > $1 and tz < $2 \parse p13
select $1 + i, b - $2, r * $3, d / $4 from t \parse p14
insert into t (i) values (1) \parse n1
create table u (a int) \parse n2
begin \parse n3
show timezone \parse n4
explain select 1 \parse n5
values (1, 'a') \parse n6
with w as (select i from t) select * from w \parse n7
select t.i, u.x from t join t u on t.i = u.i \parse n8
select (select x from t limit 1), exists (select 1 from t), array(select i from t) \parse n9
select row_number() over (), rank() over (order by i), lag(x) over (order by i) from t \parse n10
select i from t union select b from t \parse n11
select ia[1], array_length(ia, 1), j -> 'a', j ->> 'a' from t \parse n12

\group Named statements
create table t (a int primary key, b text);
insert into t values (1, 'one'), (2, 'two'), (3, 'three');
\try
select b from t where a = $1 \parse get
\bind_named get 1
\bind_named get 2
\bind_named get 9
\bind_named get x
\bind_named get NULL
\bind_named get
\bind_named get 1 2
select a from t where b = $1 \parse get
\close_prepared get
\bind_named get 1
\close_prepared get
select a from t where b = $1 \parse get
\bind_named get two
insert into t values ($1, $2) \parse put
\bind_named put 4 four
\bind_named put 4 four
\bind_named put 5 NULL
update t set b = $2 where a = $1 returning b \parse set
\bind_named set 5 five
begin \parse begin
commit \parse commit
\bind_named begin
\bind_named put 6 six
\bind_named commit
\bind_named get six
select nothing from t \parse bad
\bind_named bad
select 1 \parse ""
execute get ('one');
deallocate get;
\bind_named get one
prepare sql_made as select a from t where a > $1 order by a;
\bind_named sql_made 4
select a, b from t order by a \parse rows
\bind_named rows \rows 2
alter table t add column c int;
\bind_named rows
discard all;
\bind_named rows
select count(*) from t;
