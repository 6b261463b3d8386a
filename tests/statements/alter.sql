# Changes of tables that exist.

\group Columns
create table t (id int primary key, a varchar(3) not null default 'x', b int);
insert into t (id, b) values (1, 1), (2, 2);
\try
alter table t add column c text default 'new';
alter table t add d int;
select * from t order by id;
alter table t rename column d to e;
alter table t drop column e;
alter table t alter column a type varchar(10);
insert into t (id, a) values (3, 'abcdefgh');
alter table t alter column a type varchar(2);
alter table t alter column b type text;
select b || '!' as shown from t order by id;
alter table t alter column b type int using b::int;
select b + 1 as more from t order by id;
alter table t alter column a drop default;
insert into t (id) values (4);
alter table t alter column a set default 'y';
insert into t (id) values (5) returning a;
alter table t alter column a drop not null;
insert into t (id, a) values (6, null);
alter table t alter column a set not null;
delete from t where a is null;
alter table t alter column a set not null;
insert into t (id, a) values (7, null);
alter table t alter column nothing type int;
alter table nowhere alter column a type int;
alter table if exists nowhere alter column a type int;
alter table t alter column a type;
begin;
alter table t alter column b type text;
rollback;
select b + 1 as more from t order by id;
alter table t rename to s;
select count(*) from s;

\group Constraints
create table r (id int primary key, x int);
create table t (id int primary key, a int, b int check (b > 0));
insert into r values (1, 10), (2, 20);
insert into t values (1, 1, 1), (2, 3, 2);
\try
alter table t add constraint k foreign key (a) references r (id);
update t set a = 2 where id = 2;
alter table t add constraint k foreign key (a) references r (id) on delete cascade;
insert into t values (3, 9, 1);
delete from r where id = 2;
select id from t order by id;
alter table t drop constraint k;
insert into t values (3, 9, 1);
alter table t drop constraint k;
alter table t drop constraint if exists k;
alter table t add constraint u unique (a);
insert into t values (4, 9, 1);
alter table t drop constraint u;
insert into t values (4, 9, 1);
alter table t add constraint later foreign key (a) references r (id) deferrable initially deferred;
delete from t where a = 9;
alter table t add constraint later foreign key (a) references r (id) deferrable initially deferred;
begin;
insert into t values (5, 77, 1);
commit;
begin;
set constraints all immediate;
insert into t values (5, 77, 1);
rollback;
begin;
insert into t values (5, 77, 1);
insert into r values (77, 1);
set constraints later immediate;
commit;
select id from t order by id;
create index on t (a int4_ops);

\group Checks
create table t (id int primary key, a int unique, b int, constraint c check (b > 0), constraint u unique (b));
insert into t values (1, 1, 1), (2, -2, 2);
\try
alter table t drop constraint c;
insert into t values (3, 3, -3);
alter table t add constraint p check (a > 0);
delete from t where a < 0;
alter table t add constraint p check (a > 0);
insert into t values (4, -4, 4);
alter table t add check (b <> 7);
insert into t values (7, 7, 7);
alter table t drop constraint p;
insert into t values (4, -4, 4);
alter table t drop constraint t_a_key;
alter table t drop constraint u;
alter table t drop constraint nothing;
select id from t order by id;

\group Keys
create table n (id integer primary key, a int);
create table k (id int primary key, a int);
create table w (id text primary key, a int);
insert into n values (1, 1), (2, 2);
insert into k values (1, 1), (2, 2);
insert into w values ('1', 1), ('2', 2);
\try
alter table n alter column id type bigint;
insert into n values (3, 3);
insert into n values (3, 3);
alter table k alter column id type integer;
insert into k values (2, 3);
insert into k values (3, 3);
select id from k where id = 3;
alter table w alter column id type integer using id::integer;
select id + 1 as more from w order by id;
insert into w values (2, 3);
select a from w where id = 2;
alter table k alter column a type int unique;
alter table k add check (a > 0) unique (a);
select count(*) from k;
