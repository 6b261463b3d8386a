-- DELETE and TRUNCATE: which rows, with other tables, with RETURNING, and what foreign keys refuse.

\group Rows
create table note (id int primary key, author text, text text, stars int, made date);
insert into note select g, case g % 3 when 0 then 'ann' when 1 then 'bob' else null end, 'note ' || g, g % 5, date '2026-01-01' + g from generate_series(1, 40) as g;
\try
select count(*) from note;
delete from note where id = 1;
delete from note where id = 1;
delete from note where id in (2, 3);
delete from note where id between 4 and 6;
delete from note where author is null and id < 12;
delete from note where author = 'ann' and stars = 2;
delete from note where text like '%13';
delete from note where made = '2026-01-15';
delete from note where made > '2026-02-05';
delete from note n where n.id = 15;
delete from note as n where n.id = 16;
delete from only note where id = 17;
delete from public.note where id = 18;
delete from note where id = (select max(id) from note);
delete from note where id in (select id from note where stars = 4);
delete from note where not exists (select 1 from note b where b.author = note.author and b.id <> note.id);
delete from note where stars > all (select 100);
delete from note where id = any(array[20, 21]);
delete from note where (id, stars) in ((22, 2), (23, 0));
delete from note where length(text) > 100;
delete from note where id % 7 = 0 or stars is null;
delete from note where false;
delete from note where null;
delete from note where coalesce(author, '') = '';
select id from note order by id;
delete from note where nothing = 1;
delete from nowhere;
delete note where id = 1;
delete from note where id = 'x';
delete from note where;
delete from note set id = 1;
delete * from note;
delete from note where id = sum(1);
delete from note order by id limit 1;
with old as (select id from note order by id limit 1) delete from note where id in (select id from old);
delete from note;
select count(*) from note;
delete from note;

\group With other tables
create table customer (id int primary key, name text);
create table bill (id int primary key, customer_id int, amount numeric(6,2), paid boolean);
insert into customer values (1, 'Ann'), (2, 'Bob'), (3, 'Cid'), (4, 'Dee');
insert into bill values (1, 1, 10.00, true), (2, 1, 20.00, false), (3, 2, 30.00, true), (4, 3, 5.25, true), (5, 9, 1.00, null), (6, 4, 0.00, false), (7, 4, 8.00, true);
\try
delete from bill using customer where customer.id = bill.customer_id and customer.name = 'Cid';
delete from bill b using customer c where c.id = b.customer_id and c.name = 'Bob' returning b.id, c.name;
delete from bill where customer_id not in (select id from customer);
delete from bill using (values (6)) as v (id) where bill.id = v.id;
delete from bill b using bill a where a.customer_id = b.customer_id and a.id < b.id;
select id from bill order by id;
delete from customer c where not exists (select 1 from bill b where b.customer_id = c.id);
select id, name from customer order by id;
with paid as (delete from bill where paid returning amount) select sum(amount) from paid;
with gone as (delete from customer returning id), more as (select id from gone where id > 1) select count(*) from more;
delete from bill using customer where bill.nothing = customer.id;
delete from bill using nowhere where true;
select count(*) from bill;

\group Returning
create table item (id int primary key, name text, price numeric(6,2), made date);
insert into item values (1, 'a', 1.50, '2026-01-01'), (2, 'b', 2.00, '2026-01-02'), (3, 'c', null, null), (4, 'd', 4.00, '2026-01-04'), (5, 'e', 5.00, '2026-01-05'), (6, 'f', 6.00, '2026-01-06'), (7, 'g', 7.00, '2026-01-07'), (8, 'h', 8.00, '2026-01-08');
\try
delete from item where id = 1 returning id;
delete from item where id = 2 returning *;
delete from item where id = 3 returning name, price;
delete from item where id = 4 returning price * 2 as twice;
delete from item where id = 5 returning upper(name);
delete from item where id = 99 returning id;
delete from item as i where i.id = 6 returning i.name || '!' as n;
delete from item where id = 7 returning nothing;
delete from item where id = $1 returning id, name \bind 7
delete from item where name = $1 \bind zzz
delete from item returning made;
delete from item returning *;

\group Foreign keys
create table house (id int primary key, street text);
create table room (id int primary key, house_id int references house (id) on delete cascade, name text);
create table lamp (id int primary key, room_id int references room (id) on delete set null);
create table tax (id int primary key, house_id int not null references house (id));
insert into house values (1, 'Elm'), (2, 'Oak'), (3, 'Ash');
insert into room values (10, 1, 'hall'), (11, 1, 'den'), (12, 2, 'hall'), (13, 3, 'attic');
insert into lamp values (100, 10), (101, 12), (102, null);
insert into tax values (1000, 2);
\try
delete from house where id = 2;
delete from house where id = 1;
select id from room order by id;
select id, room_id from lamp order by id;
delete from house;
select count(*) from house;
delete from tax;
delete from house;
select count(*) from room;
select id, room_id from lamp order by id;
drop table house;
drop table house cascade;
delete from room;
drop table if exists house;
drop table house;
begin;
delete from lamp;
select count(*) from lamp;
rollback;
select count(*) from lamp;

\group Truncate
create table big (id serial primary key, t text);
create table other (id int);
create table owner (id int primary key);
create table owned (id int references owner (id));
insert into big (t) select 'x' from generate_series(1, 5);
insert into other values (1), (2);
insert into owner values (1);
insert into owned values (1);
\try
truncate big;
select count(*) from big;
insert into big (t) values ('after') returning id;
truncate table big restart identity;
insert into big (t) values ('again') returning id;
truncate big, other;
select count(*) from other;
truncate nowhere;
truncate owner;
truncate owner cascade;
select count(*) from owned;
begin;
insert into other values (5);
truncate other;
rollback;
select count(*) from other;
truncate only other continue identity;
