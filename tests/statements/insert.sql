-- INSERT: values, defaults, queries, RETURNING, ON CONFLICT; and the rows that a constraint or a type refuses.

\group Rows and defaults
create table item (id int primary key, name text, price numeric(8,2) default 1.50, stock int default 0, added date, note varchar(10), ok boolean default true);
\try
insert into item (id, name) values (1, 'pen');
insert into item values (2, 'ink', 3.25, 10, '2026-01-05', 'blue', false);
insert into item (id, name) values (3, 'nib'), (4, 'pad'), (5, 'cap');
insert into item (name, id) values ('box', 6);
insert into item (id) values (7);
insert into item values (8);
insert into item values (9, 'clip', default, default);
insert into item (id, price) values (10, default);
insert into item (id, name, price) values (11, 'tape', 2), (12, 'glue', default);
insert into item (id, name) values (13, null);
insert into item (id, name) values (14, 'it''s');
insert into item (id, name) values (15, E'line\nbreak');
insert into item (id, name) values (16, $$dollar's$$);
insert into item (id, price) values (17, 10 / 4);
insert into item (id, price) values (18, 10 / 4.0);
insert into item (id, price) values (19, 2.005);
insert into item (id, price) values (20, '7.1');
insert into item (id, stock) values (21, 3.7);
insert into item (id, stock) values (22, 2.5);
insert into item (id, stock) values (23, '12');
insert into item (id, ok) values (24, 'yes'), (25, 'f'), (26, 'true'), (27, '0');
insert into item (id, added) values (28, '2026-02-28');
insert into item (id, added) values (29, 'January 8, 1999');
insert into item (id, added) values (30, '20260131');
insert into item (id, added) values (31, date '2026-03-01' + 1);
insert into item (id, added) values (32, current_date);
insert into item (id, note) values (33, '1234567890');
insert into item (id, note) values (34, '1234567890    ');
insert into item as i (id, name) values (35, 'alias');
insert into public.item (id) values (36);
select * from item where id <= 6 order by id;
select id, name, price, stock, ok from item where id between 7 and 16 order by id;
select id, price, stock from item where id between 17 and 23 order by id;
select id, ok from item where ok is not true or id between 24 and 27 order by id;
select id, added from item where id between 28 and 31 order by id;
select id, length(note) from item where id in (33, 34) order by id;
select count(*) from item where added = current_date;
insert into item (id, id) values (40, 41);
insert into item (id, nothing) values (40, 1);
insert into nowhere values (1);
insert into item (id, name) values (40);
insert into item (id) values (40, 'x');
insert into item values (40, 'a', 1, 2, null, null, true, 'too many');
insert into item values (40, 'a'), (41);
insert into item;
insert into item (id) value (40);
insert into item values;
insert item values (40);
select count(*) from item where id >= 40;

\group Values that do not fit
create table measure (id int primary key, small smallint, whole int, big bigint, price numeric(5,2), label varchar(3), code char(2), day date, moment timestamp, fine boolean, real_one real, double_one double precision, key uuid, bits bytea, doc json);
\try
insert into measure (id, small) values (1, 32767);
insert into measure (id, small) values (2, 32768);
insert into measure (id, whole) values (3, 2147483647);
insert into measure (id, whole) values (4, 2147483648);
insert into measure (id, whole) values (5, 99999999999);
insert into measure (id, big) values (6, 9223372036854775807);
insert into measure (id, big) values (7, 9223372036854775808);
insert into measure (id, whole) values (8, 'abc');
insert into measure (id, whole) values (9, '1.5');
insert into measure (id, whole) values (10, '');
insert into measure (id, whole) values (11, ' 42 ');
insert into measure (id, whole) values (12, true);
insert into measure (id, price) values (13, 999.99);
insert into measure (id, price) values (14, 1000);
insert into measure (id, price) values (15, 999.999);
insert into measure (id, price) values (16, 'cheap');
insert into measure (id, price) values (17, 'NaN');
insert into measure (id, label) values (18, 'abc');
insert into measure (id, label) values (19, 'abcd');
insert into measure (id, label) values (20, 'abc  ');
insert into measure (id, label) values (21, 'äöü');
insert into measure (id, code) values (22, 'a');
insert into measure (id, code) values (23, 'abc');
insert into measure (id, label) values (24, 123);
insert into measure (id, label) values (25, 1234);
insert into measure (id, day) values (26, '2026-02-30');
insert into measure (id, day) values (27, '2026-13-01');
insert into measure (id, day) values (28, 'soon');
insert into measure (id, day) values (29, '2024-02-29');
insert into measure (id, day) values (30, 5);
insert into measure (id, day) values (31, '2026-01-01 10:00:00');
insert into measure (id, moment) values (32, '2026-01-01');
insert into measure (id, moment) values (33, '2026-01-01 25:00:00');
insert into measure (id, moment) values (34, '2026-01-01T10:30:00Z');
insert into measure (id, moment) values (35, '2026-01-01 10:30:15.123456789');
insert into measure (id, fine) values (36, 'maybe');
insert into measure (id, fine) values (37, 1);
insert into measure (id, fine) values (38, 'on');
insert into measure (id, real_one) values (39, 0.1);
insert into measure (id, real_one) values (40, 1e50);
insert into measure (id, double_one) values (41, 'infinity');
insert into measure (id, double_one) values (42, '-Infinity');
insert into measure (id, double_one) values (43, 'abc');
insert into measure (id, double_one) values (44, 1e400);
insert into measure (id, key) values (45, 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11');
insert into measure (id, key) values (46, 'A0EEBC999C0B4EF8BB6D6BB9BD380A11');
insert into measure (id, key) values (47, 'not a key');
insert into measure (id, bits) values (48, '\xDEADbeef');
insert into measure (id, bits) values (49, 'abc');
insert into measure (id, doc) values (50, '{"a": 1}');
insert into measure (id, doc) values (51, '{a: 1}');
insert into measure (id) values ('52');
insert into measure (id) values ('x');
insert into measure (id) values (53.4);
insert into measure (id) values (null);
select id, small, whole, big from measure where id <= 12 order by id;
select id, price, label, code from measure where id between 13 and 25 order by id;
select id, day, moment from measure where id between 26 and 35 order by id;
select id, fine, real_one, double_one from measure where id between 36 and 44 order by id;
select id, key, bits, doc from measure where id between 45 and 51 order by id;
select count(*) from measure where id > 51;

\group Constraints
create table maker (id int primary key, name text unique not null);
create table model (id int primary key, maker_id int references maker (id), name text not null check (name <> ''), price int check (price > 0), unique (maker_id, name));
insert into maker values (1, 'Acme'), (2, 'Bolt');
insert into model values (1, 1, 'A1', 100);
\try
insert into maker values (1, 'Other');
insert into maker values (3, 'Acme');
insert into maker values (3, null);
insert into maker (id) values (3);
insert into maker values (null, 'None');
insert into model values (2, 1, 'A2', 200);
insert into model values (3, 9, 'X', 100);
insert into model values (3, null, 'Free', 50);
insert into model values (4, null, 'Free', 60);
insert into model values (5, 1, 'A1', 100);
insert into model values (5, 1, '', 100);
insert into model values (5, 1, 'A5', 0);
insert into model values (5, 1, 'A5', null);
insert into model values (6, 1, null, 10);
insert into model values (6, 1, 'A6', 10), (1, 1, 'A7', 10);
select id from model order by id;
select count(*) from maker;
insert into maker values (4, 'Same'), (4, 'Same too');
insert into maker values (5, 'Twin'), (6, 'Twin');
select id, name from maker order by id;
begin;
insert into maker values (7, 'Seven');
insert into maker values (1, 'Again');
insert into maker values (8, 'Eight');
rollback;
select count(*) from maker where id > 6;

\group Serial numbers
create table log (id serial primary key, text text);
\try
insert into log (text) values ('a');
insert into log (text) values ('b'), ('c');
insert into log (text) values ('d') returning id;
insert into log (id, text) values (10, 'ten');
insert into log (text) values ('e') returning id, text;
insert into log values (default, 'f') returning *;
insert into log default values returning id;
insert into log (id, text) values (10, 'again');
select id, text from log order by id;
select currval('log_id_seq');
select lastval();
delete from log;
insert into log (text) values ('later') returning id;
create table nothing (id serial);
insert into nothing default values;

\group Identity columns
\try
create table event (id int generated always as identity primary key, what text);
insert into event (what) values ('start') returning id;
insert into event (what) values ('more'), ('end') returning id;
insert into event (id, what) values (50, 'given');
insert into event (id, what) overriding system value values (50, 'given') returning id;
insert into event values (default, 'default') returning id;
select id, what from event order by id;
create table visit (id bigint generated by default as identity, who text, at timestamp default now());
insert into visit (who) values ('ann') returning id;
insert into visit (id, who) values (9, 'bob') returning id;
insert into visit (who) values ('cid') returning id, at is not null as timed;
select count(*) from visit where at <= now();
create table sum (a int, b int, total int generated always as (a + b) stored);
insert into sum (a, b) values (1, 2) returning total;
insert into sum values (1, 2, 3);

\group Sequences
\try
create sequence counter start 100 increment 10;
select nextval('counter');
select nextval('counter');
select currval('counter');
select setval('counter', 200);
select nextval('counter');
select nextval('nosuch');
create table numbered (id int default nextval('counter'), t text);
insert into numbered (t) values ('x') returning id;
insert into numbered (id, t) values (nextval('counter'), 'y') returning id;
drop sequence counter;
drop sequence if exists counter cascade;

\group Queries as the source
create table source (id int, name text, size int);
create table target (id int primary key, name text, size int default 7);
insert into source values (1, 'a', 10), (2, 'b', 20), (3, 'c', 30);
\try
insert into target select * from source where id = 1;
insert into target (id, name) select id, upper(name) from source where id = 2;
insert into target (id, name, size) select id, name, size * 2 from source where id > 2 order by id;
insert into target select id + 10, name, size from source returning id, name;
insert into target (id) select generate_series(21, 23);
insert into target (id, name) select g, 'n' || g from generate_series(31, 33) as g;
insert into target (id, name) values (41, (select name from source where id = 1));
insert into target (id, size) select max(id) + 1, count(*) from target;
insert into target with s as (select 61 as id, 'cte' as name) select id, name from s;
with s as (select 62 as id, 'outer' as name) insert into target (id, name) select id, name from s;
with gone as (delete from source where id = 3 returning id, name) insert into target (id, name) select id + 70, name from gone returning id;
insert into target (id, name) select 80, 'x' union all select 81, 'y';
insert into target (id, name) values (90, 'v') union all values (91, 'w');
insert into target (id, name) select 92, name from source where false;
insert into target (id, name) select s.id + 100, s.name from source s join target t on t.id = s.id;
insert into target (id, name) table source;
insert into target (id) select id, name from source;
insert into target select 1, 'twice';
insert into target (id, name) select distinct 120, 'd' from source;
select id, name, size from target order by id;
select count(*) from source;

\group Returning
create table thing (id serial primary key, name text, price numeric(6,2), made date default '2026-01-01');
\try
insert into thing (name) values ('a') returning id;
insert into thing (name) values ('b') returning *;
insert into thing (name, price) values ('c', 1.5) returning id, price;
insert into thing (name, price) values ('d', 2) returning price * 2 as double;
insert into thing (name, price) values ('e', 3) returning price * 2;
insert into thing (name) values ('f'), ('g') returning id, upper(name);
insert into thing (name) values ('h') returning thing.id;
insert into thing (name) values ('i') returning id as key, name as "Name";
insert into thing as t (name) values ('j') returning t.id, t.name;
insert into thing (name) values ('k') returning (select count(*) from thing);
insert into thing (name) values ('l') returning made + 1 as next_day;
insert into thing (name) values ('m') returning name || '!' as shout;
insert into thing (name) values ('n') returning coalesce(price, 0) as price;
insert into thing (name) values ('o') returning nothing;
insert into thing (name) select 'p' where false returning id;
insert into thing (name) values ($1) returning id, name \bind param
insert into thing (name, price) values ($1, $2) returning price \bind q 9.5
with new as (insert into thing (name) values ('r') returning id, name) select name from new;
with new as (insert into thing (name) values ('s'), ('t') returning *) select count(*) from new;
select count(*) from thing;

\group Conflicts
create table stock (sku text primary key, amount int not null default 0, note text, unique (note));
insert into stock values ('pen', 5, 'blue'), ('ink', 2, 'black');
\try
insert into stock values ('pen', 1) on conflict do nothing;
insert into stock values ('pen', 1) on conflict (sku) do nothing;
insert into stock values ('pen', 1) on conflict (sku) do update set amount = stock.amount + excluded.amount;
insert into stock values ('pen', 1) on conflict (sku) do update set amount = stock.amount + excluded.amount returning sku, amount;
insert into stock (sku, amount) values ('nib', 7) on conflict (sku) do update set amount = excluded.amount returning amount;
insert into stock (sku, amount) values ('nib', 8) on conflict (sku) do update set amount = excluded.amount where stock.amount > 100;
insert into stock (sku, amount) values ('nib', 8) on conflict (sku) do update set amount = excluded.amount where stock.amount < 100 returning *;
insert into stock (sku, amount) values ('a', 1), ('pen', 2), ('b', 3) on conflict (sku) do nothing;
insert into stock (sku, amount) values ('a', 10), ('c', 30) on conflict (sku) do update set amount = excluded.amount returning sku;
insert into stock (sku, note) values ('d', 'blue') on conflict (note) do update set amount = -1 returning sku, amount;
insert into stock (sku, note) values ('d', 'blue') on conflict do nothing returning sku;
insert into stock (sku, note) values ('d', 'blue') on conflict (sku) do nothing;
insert into stock as s (sku, amount) values ('pen', 1) on conflict (sku) do update set amount = s.amount * 2 returning s.amount;
insert into stock (sku, amount) values ('pen', 1) on conflict on constraint stock_pkey do nothing;
insert into stock (sku, amount) values ('pen', 1) on conflict on constraint stock_pkey do update set (amount, note) = (excluded.amount, 'both') returning *;
insert into stock (sku, amount) values ('pen', 1) on conflict (amount) do nothing;
insert into stock (sku, amount) values ('pen', 1) on conflict do update set amount = 1;
insert into stock (sku, amount) values ('e', 1), ('e', 2) on conflict (sku) do nothing returning amount;
insert into stock (sku, amount) values ('f', 1), ('f', 2) on conflict (sku) do update set amount = excluded.amount;
insert into stock (sku, amount) values ('g', null) on conflict (sku) do nothing;
insert into stock (sku, amount) select 'pen', 3 on conflict (sku) do update set amount = excluded.amount;
insert into stock (sku, amount) values ($1, $2) on conflict (sku) do update set amount = excluded.amount returning amount \bind pen 44
insert or replace into stock (sku, amount) values ('pen', 9);
replace into stock (sku, amount) values ('pen', 9);
select sku, amount, note from stock order by sku;
merge into stock s using (values ('pen', 1), ('zip', 2)) as v (sku, amount) on s.sku = v.sku when matched then update set amount = v.amount when not matched then insert (sku, amount) values (v.sku, v.amount);
select sku, amount from stock where sku in ('pen', 'zip') order by sku;
