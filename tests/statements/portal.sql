-- Portals and cursors: rows in portions, DECLARE, FETCH, MOVE and CLOSE, and how long a portal lives.

\group Rows in portions
create table t (a int primary key, b text);
insert into t select g, 'row ' || g from generate_series(1, 7) as g;
\try
select a from t order by a \bind \rows 3
select a from t order by a \bind \rows 7
select a from t order by a \bind \rows 8
select a from t order by a \bind \rows 1
select a from t where a > $1 order by a \bind 5 \rows 1
select a from t where a > 100 \bind \rows 2
select a, b from t order by a desc \bind \rows 4
values (1), (2), (3) \bind \rows 2
insert into t values (8, 'x') returning a \bind \rows 1
update t set b = 'y' where a > 5 returning a \bind \rows 2
insert into t values (9, 'x') \bind \rows 1
delete from t where a > 7 returning a \bind \rows 10
select 1/a from t order by a \bind \rows 2
select 1/(3 - a) from t order by a \bind \rows 1
select g from generate_series(1, 5) as g \bind \rows 2
select a from t order by b desc, a \bind \rows 5
select count(*) from t \bind \rows 1
select b, count(*) from t group by b order by b \bind \rows 2
with x as (select a from t) select a from x order by a \bind \rows 6
select nothing from t \bind \rows 2
begin \bind \rows 1
commit \bind \rows 1
show standard_conforming_strings \bind \rows 1

\group Named portals
create table t (a int primary key, b text);
insert into t select g, 'row ' || g from generate_series(1, 6) as g;
\try
begin;
select a from t order by a \bind \portal p
\execute p 2
\execute p 2
\execute p 0
\execute p 1
\close_portal p
\execute p 1
rollback;
begin;
select a from t where a > $1 order by a \bind 3 \portal q
select b from t order by a \bind \portal r
\execute q 1
\execute r 1
\execute q 1
\execute r 2
fetch 1 from r;
select name from pg_cursors order by name;
commit;
\execute q 1
select a from t order by a \bind \portal lost
\execute lost 1
begin;
select a from t order by a \bind \portal same
select b from t order by a \bind \portal same
\execute same 1
rollback;
begin;
select a from t order by a \bind \portal s
\execute s 1
delete from t where a > 3;
\execute s 10
rollback;
begin;
select a from t order by a \bind \portal e
select 1/0;
\execute e 1
rollback;
begin;
select a from t order by a \bind \portal before
savepoint x;
select b from t order by a \bind \portal after
rollback to x;
\execute before 1
\execute after 1
rollback;
begin;
insert into t values (10, 'ten') returning a \bind \portal i
\execute i 0
\execute i 0
select count(*) from t;
rollback;
begin;
update t set b = 'new' \bind \portal u
\execute u 0
select count(*) from t where b = 'new';
rollback;
\close_portal nosuch
\execute nosuch 1

\group Cursors
create table t (a int primary key, b text);
insert into t select g, 'row ' || g from generate_series(1, 8) as g;
\try
begin;
declare c cursor for select a, b from t order by a;
fetch c;
fetch 2 from c;
fetch next from c;
fetch forward 1 from c;
fetch forward 2 in c;
fetch all from c;
fetch c;
close c;
fetch c;
rollback;
begin;
declare s scroll cursor for select a from t order by a;
fetch last from s;
fetch prior from s;
fetch first from s;
fetch absolute 4 from s;
fetch relative 2 from s;
fetch relative -1 from s;
fetch backward 2 from s;
fetch backward all from s;
fetch 0 from s;
fetch absolute -1 from s;
fetch forward all from s;
move first from s;
fetch next from s;
move 3 from s;
fetch 1 from s;
move backward 2 in s;
fetch s;
move all from s;
fetch s;
close s;
commit;
declare outside cursor for select 1;
begin;
declare n no scroll cursor for select a from t order by a;
fetch 2 from n;
fetch backward 1 from n;
rollback;
begin;
declare d cursor for select a from t;
declare d cursor for select a from t;
rollback;
begin;
declare w cursor with hold for select a from t order by a;
fetch 2 from w;
commit;
fetch 2 from w;
select name, is_holdable from pg_cursors;
delete from t where a > 6;
fetch all from w;
close w;
close w;
close all;
begin;
declare p cursor for select b from t where a > 4 order by a;
fetch 1 from p;
savepoint x;
fetch 1 from p;
rollback to x;
fetch 1 from p;
commit;
fetch 1 from p;
begin;
declare v cursor for values (1, 'a'), (2, 'b');
fetch all v;
declare e cursor for select 1/(a - 2) from t order by a;
fetch 1 from e;
fetch 1 from e;
fetch 1 from e;
rollback;
begin;
declare u cursor for select a, b from t order by a for update;
fetch 1 from u;
update t set b = 'here' where current of u;
select b from t where a = 1;
delete from t where current of u;
select count(*) from t;
rollback;
begin;
declare bad cursor for select nothing from t;
rollback;
begin;
declare bad cursor for insert into t values (100);
rollback;
begin;
declare "Odd Name" cursor for select 1 as one;
fetch from "Odd Name";
close "Odd Name";
commit;
begin;
declare b binary cursor for select a from t where false;
fetch b;
declare i insensitive cursor for select a from t order by a;
delete from t;
fetch 2 from i;
rollback;
fetch from nowhere;
move 1 from nowhere;
close nowhere;
begin;
declare many cursor for select a from t order by a;
fetch 3 from many\; fetch 1 from many;
move forward 1 from many;
fetch many \bind
rollback;
