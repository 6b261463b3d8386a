-- Joins: inner, outer, cross, lateral, by USING and by equal names, of a table with itself and with sub-queries.

\group Inner joins
create table customer (id int primary key, name text, city text);
create table purchase (id int primary key, customer_id int, total numeric(8,2), placed date);
create table line (purchase_id int, product text, quantity int, price numeric(8,2));
insert into customer values (1, 'Ada', 'Oslo'), (2, 'Ben', 'Rome'), (3, 'Cy', 'Oslo'), (4, 'Di', null);
insert into purchase values (10, 1, 20.50, '2026-02-01'), (11, 1, 5.00, '2026-02-03'), (12, 2, 100.00, '2026-02-03'), (13, null, 1.00, '2026-02-04');
insert into line values (10, 'pen', 2, 1.25), (10, 'book', 1, 18.00), (11, 'ink', 1, 5.00), (12, 'lamp', 4, 25.00);
\try
select customer.name, purchase.id from customer join purchase on purchase.customer_id = customer.id order by purchase.id;
select c.name, p.id from customer c join purchase p on p.customer_id = c.id order by p.id;
select c.name, p.id from customer as c inner join purchase as p on c.id = p.customer_id order by p.id;
select name, total from customer, purchase where customer.id = customer_id order by total;
select * from customer c join purchase p on c.id = p.customer_id order by p.id;
select c.*, p.total from customer c join purchase p on c.id = p.customer_id order by p.id;
select p.*, c.name from customer c join purchase p on c.id = p.customer_id where c.city = 'Oslo' order by p.id;
select c.name, p.id, l.product from customer c join purchase p on c.id = p.customer_id join line l on l.purchase_id = p.id order by p.id, l.product;
select c.name, l.product, l.quantity * l.price as amount from customer c join purchase p on c.id = p.customer_id join line l on l.purchase_id = p.id order by amount desc, l.product;
select c.name, l.product from customer c join (purchase p join line l on l.purchase_id = p.id) on c.id = p.customer_id order by l.product;
select c.name from customer c join purchase p on c.id = p.customer_id and p.total > 50;
select c.name from customer c join purchase p on c.id = p.customer_id where p.placed = '2026-02-03' order by c.name;
select distinct c.name from customer c join purchase p on c.id = p.customer_id order by c.name;
select c.name, count(*) from customer c join purchase p on c.id = p.customer_id group by c.name order by c.name;
select c.name, sum(p.total) as spent from customer c join purchase p on c.id = p.customer_id group by c.id, c.name having sum(p.total) > 30;
select c.id, c.name, count(p.id) from customer c join purchase p on c.id = p.customer_id group by c.id order by c.id;
select c.city, max(p.total) from customer c join purchase p on c.id = p.customer_id group by c.city order by 1;
select a.name, b.name from customer a join customer b on a.city = b.city and a.id < b.id;
select a.id, b.id from purchase a join purchase b on a.placed = b.placed where a.id <> b.id order by a.id;
select c.name from customer c join purchase p on c.id < p.id - 10 order by c.name, p.id;
select id from customer join purchase on customer.id = purchase.customer_id;
select name from customer c join purchase p on c.nothing = p.id;
select name from customer c join purchase p on c.id = p.customer_id where q.id = 1;
select name from customer join purchase;
select c.name from customer c join purchase p on true where p.id = 10 order by c.name;
select c.name from customer c join customer c on true;
select customer.name from customer c;
select c.name, p.total from customer c join purchase p on p.customer_id = c.id order by p.total desc limit 1;
select 1 from customer join purchase on customer.id = customer_id limit 1;
select c.name || ' paid ' || p.total from customer c join purchase p on p.customer_id = c.id order by p.id;
select c.id = p.customer_id as same from customer c join purchase p on p.customer_id = c.id limit 1;
select sum(l.quantity * l.price) from purchase p join line l on l.purchase_id = p.id where p.customer_id = 1;
select p.id, p.total - sum(l.quantity * l.price) as rest from purchase p join line l on l.purchase_id = p.id group by p.id order by p.id;

\group Outer joins
create table customer (id int primary key, name text, city text);
create table purchase (id int primary key, customer_id int, total int);
insert into customer values (1, 'Ada', 'Oslo'), (2, 'Ben', 'Rome'), (3, 'Cy', 'Oslo');
insert into purchase values (10, 1, 20), (11, 1, 5), (12, 2, 100), (13, null, 1), (14, 9, 2);
\try
select c.name, p.id from customer c left join purchase p on p.customer_id = c.id order by c.id, p.id;
select c.name, p.id from customer c left outer join purchase p on p.customer_id = c.id order by c.id, p.id;
select c.name, p.id from customer c right join purchase p on p.customer_id = c.id order by p.id;
select c.name, p.id from customer c full join purchase p on p.customer_id = c.id order by p.id, c.id;
select c.name, p.id from customer c full outer join purchase p on p.customer_id = c.id order by c.id, p.id;
select c.name from customer c left join purchase p on p.customer_id = c.id where p.id is null;
select p.id from customer c right outer join purchase p on p.customer_id = c.id where c.id is null order by p.id;
select c.name, p.id from customer c left join purchase p on p.customer_id = c.id and p.total > 10 order by c.id, p.id;
select c.name, p.id from customer c left join purchase p on p.customer_id = c.id where p.total > 10 order by p.id;
select c.name, coalesce(p.total, 0) from customer c left join purchase p on p.customer_id = c.id order by c.id, p.id;
select c.name, coalesce(sum(p.total), 0) as spent from customer c left join purchase p on p.customer_id = c.id group by c.name order by c.name;
select c.name, count(p.id) as purchases from customer c left join purchase p on p.customer_id = c.id group by c.name order by c.name;
select c.name, count(*) from customer c left join purchase p on p.customer_id = c.id group by c.name order by c.name;
select * from customer c left join purchase p on p.customer_id = c.id order by c.id, p.id;
select c.name, p.id from customer c left join purchase p on false order by c.name;
select c.name, p.id from customer c left join purchase p on p.customer_id = c.id order by p.id nulls first, c.name;
select c.name, p.id from customer c left join purchase p on p.customer_id = c.id order by p.id desc, c.name;
select c.name, x.n from customer c left join (select customer_id, count(*) as n from purchase group by customer_id) as x on x.customer_id = c.id order by c.name;
select count(*) from customer c full join purchase p on p.customer_id = c.id;
select c.name, a.id, b.id from customer c left join purchase a on a.customer_id = c.id left join purchase b on b.customer_id = c.id and b.id > a.id order by c.id, a.id, b.id;
select c.name from customer c left join purchase p on p.customer_id = c.id group by c.name having count(p.id) = 0;
select (p.id is null) as none from customer c left join purchase p on p.customer_id = c.id where c.id = 3;
select c.name, p.id from customer c left join purchase p using (id) order by c.name;
select c.name, case when p.id is null then 'no' else 'yes' end as bought from customer c left join purchase p on p.customer_id = c.id order by c.id, p.id;
select coalesce(c.name, 'unknown') as name, p.total from customer c right join purchase p on p.customer_id = c.id order by p.id;

\group Cross joins
create table size (s text);
create table colour (c text);
insert into size values ('S'), ('M');
insert into colour values ('red'), ('green'), ('blue');
\try
select s, c from size cross join colour order by s, c;
select s, c from size, colour order by c, s;
select count(*) from size, colour;
select count(*) from size a, size b, colour;
select * from size cross join colour order by 1, 2;
select s || ' ' || c as label from size cross join colour order by label;
select a.s, b.s from size a cross join size b order by 1, 2;
select s, n from size, generate_series(1, 2) as n order by s, n;
select s, v.x from size cross join (values (1), (2)) as v (x) order by s, x;
select s, c from size cross join colour where c <> 'red' order by s, c;
select s, c from size cross join colour on true;
select s, c from size join colour on length(s) = 1 and c like 'b%' order by s;
select s, u from size cross join unnest(array[1, 2]) as u order by s, u;

\group Equal names
create table author (author_id int primary key, name text);
create table book (book_id int primary key, author_id int, title text);
create table copy_of_book (book_id int, shelf text);
insert into author values (1, 'Lem'), (2, 'Eco'), (3, 'Poe');
insert into book values (100, 1, 'Solaris'), (101, 1, 'Fiasco'), (102, 2, 'Baudolino'), (103, null, 'Beowulf');
insert into copy_of_book values (100, 'A'), (100, 'B'), (102, 'C');
\try
select name, title from author join book using (author_id) order by title;
select * from author join book using (author_id) order by book_id;
select author_id, name, title from author join book using (author_id) order by title;
select a.author_id, b.author_id from author a join book b using (author_id) order by b.book_id;
select * from author natural join book order by book_id;
select name, title from author natural join book order by title;
select * from author natural left join book order by author_id, book_id;
select author_id, name, title from author left join book using (author_id) order by author_id, title;
select author_id, name, title from author right join book using (author_id) order by title;
select author_id, name, title from author full join book using (author_id) order by author_id, title;
select * from author join book using (author_id) join copy_of_book using (book_id) order by shelf;
select name, title, shelf from author join book using (author_id) left join copy_of_book using (book_id) order by title, shelf;
select count(*) from author natural join book natural join copy_of_book;
select name from author join book using (title);
select name from author join book using (author_id, book_id);
select author_id from author join book on author.author_id = book.author_id;
select author.author_id from author join book on author.author_id = book.author_id order by 1;
select x.author_id, title from (author join book using (author_id)) as x order by title;
select * from author join book using (author_id) as j where j.author_id = 2;
select * from book natural full join copy_of_book order by book_id, shelf;

\group Sub-queries and lateral joins
create table team (id int primary key, name text);
create table player (id int primary key, team_id int, name text, goals int);
insert into team values (1, 'Lions'), (2, 'Bears'), (3, 'Owls');
insert into player values (1, 1, 'Ian', 7), (2, 1, 'Jo', 3), (3, 2, 'Kit', 9), (4, 2, 'Lou', 9), (5, null, 'Max', 1);
\try
select t.name, p.name from team t, lateral (select name from player where team_id = t.id order by goals desc, id limit 1) as p order by t.name;
select t.name, p.goals from team t cross join lateral (select max(goals) as goals from player where team_id = t.id) as p order by t.name;
select t.name, p.name from team t left join lateral (select name from player where team_id = t.id order by goals limit 1) as p on true order by t.name;
select t.name, s.total from team t join (select team_id, sum(goals) as total from player group by team_id) as s on s.team_id = t.id order by t.name;
select t.name, g.n from team t, lateral generate_series(1, t.id) as g (n) order by t.name, g.n;
select t.name, n from team t, generate_series(1, t.id) as n order by t.name, n;
select p.name from player p join team t on t.id = p.team_id where p.goals = (select max(goals) from player where team_id = t.id) order by p.name;
select t.name from team t where t.id in (select team_id from player where goals > 5) order by t.name;
select t.name from team t where t.id not in (select team_id from player) order by t.name;
select t.name from team t where not exists (select 1 from player p where p.team_id = t.id);
select t.name, (select count(*) from player p where p.team_id = t.id) as players from team t order by t.name;
select t.name, (select string_agg(p.name, ', ' order by p.name) from player p where p.team_id = t.id) as names from team t order by t.name;
select t.name, array(select p.name from player p where p.team_id = t.id order by p.name) as names from team t order by t.name;
select p.name, t.name as team from player p left join team t on t.id = p.team_id order by p.name;
with scorer as (select team_id, max(goals) as best from player group by team_id) select t.name, s.best from team t join scorer s on s.team_id = t.id order by t.name;
select x.name, y.name from (select * from team where id = 1) as x join (select * from player where goals > 5) as y on y.team_id = x.id;
select t.name, p.name from team t join player p on p.team_id = t.id and p.goals = any(array[3, 7]) order by p.name;
select t.name, v.label from team t join (values (1, 'first'), (2, 'second')) as v (id, label) on v.id = t.id order by t.name;
select t.name, v.label from team t left join (values (1, 'first'), (2, 'second')) as v (id, label) using (id) order by t.name;
select p.name from player p, team t where p.team_id = t.id and t.name = 'Bears' order by p.name;
select p.name from player p where (p.team_id, p.goals) in (select team_id, max(goals) from player group by team_id) order by p.name;
select t.name from team t where 5 < all (select goals from player where team_id = t.id) order by t.name;
select t.name from team t where 5 < any (select goals from player where team_id = t.id) order by t.name;
select t.name, p.name from team t join player p on p.id = (select min(id) from player where team_id = t.id) order by t.name;
select t.id, p.id from team t join player p on (t.id, 7) = (p.team_id, p.goals);
select t.name from team t join player p on t.id = p.team_id group by t.name having min(p.goals) > 5;
select p.name, rank() over (partition by t.name order by p.goals desc) as place from player p join team t on t.id = p.team_id order by p.id;
select t.name, p.name from team t join player p on p.team_id = t.id order by t.name, p.name offset 1 limit 2;
select count(distinct t.id), count(distinct p.id) from team t left join player p on p.team_id = t.id;
select t.name from team t, (select name from player where team_id = t.id) as p;
