-- COPY: from the client and to it, in text and CSV, with columns, delimiters, nulls and headers; and data that does not fit.

\group Text from the client
create table t (a int, b text, c numeric(6,2), d date, e boolean);
create table k (id int primary key, name varchar(5) not null default 'none');
\try
copy t from stdin;
1	one	1.50	2026-01-01	t
2	two	2	2026-01-02	f
\.
copy t (a, b) from stdin;
3	three
4	\N
5	
\.
copy t (b, a) from stdin;
six	6
\.
copy t (a, b) from stdin;
7	tab\there
8	line\nbreak
9	back\\slash
\.
copy t (a, b) from stdin;
\.
copy public.t (a) from stdin;
10
\.
copy t (a, b) from stdin with (format text);
11	eleven
\.
copy t (a, b) from stdin (delimiter ',');
12,twelve
\.
copy t (a, b) from stdin with delimiter '|';
13|thirteen
\.
copy t (a, b) from stdin with (delimiter ';', null 'NONE');
14;NONE
15;none
\.
copy t (a, b) from stdin null '-';
16	-
\.
copy t (a, e) from stdin;
17	yes
18	0
\.
copy t (a, c) from stdin;
19	12.345
\.
copy t (a, b) from stdin;
20	\x41\102
\.
select a, b from t order by a;
select a, c, d, e from t where a in (1, 2, 17, 18, 19) order by a;
copy t (a, b) from stdin;
x	bad
\.
copy t (a, b) from stdin;
30	good
31
\.
copy t (a, b) from stdin;
32	too	many
\.
copy t (a, d) from stdin;
33	2026-02-30
\.
copy t (a, c) from stdin;
34	99999999
\.
copy t (a, e) from stdin;
35	maybe
\.
copy t (a) from stdin;
99999999999
\.
select count(*) from t where a >= 30 or a is null;
copy k from stdin;
1	a
2	b
\.
copy k from stdin;
3	c
1	again
\.
copy k (id) from stdin;
4
\.
copy k from stdin;
5	\N
\.
copy k from stdin;
6	too long
\.
copy k (name) from stdin;
x
\.
select id, name from k order by id;
copy nowhere from stdin;
1
\.
copy t (nothing) from stdin;
1
\.
copy t (a, a) from stdin;
1	1
\.
copy t from stdin with (format nosuch);
1
\.
copy t from stdin with (nosuch true);
1
\.
begin;
copy k from stdin;
7	g
\.
rollback;
select count(*) from k where id = 7;
begin;
copy k from stdin;
8	h
\.
copy k from stdin;
8	h
\.
select 1;
rollback;

\group CSV from the client
create table t (a int, b text, c numeric(6,2));
\try
copy t from stdin with (format csv);
1,one,1.50
2,"two, too",2
\.
copy t from stdin with csv;
3,three,3
\.
copy t from stdin csv;
4,"say ""hi""",4
\.
copy t from stdin (format 'csv');
5,five,5
\.
copy t from stdin with (format csv, header);
a,b,c
6,six,6
\.
copy t from stdin with (format csv, header true);
x,y,z
7,seven,7
\.
copy t from stdin csv header;
a,b,c
8,eight,8
\.
copy t from stdin with (format csv, header match);
a,b,c
9,nine,9
\.
copy t from stdin with (format csv, header match);
c,b,a
10,ten,10
\.
copy t from stdin with (format csv, delimiter ';');
11;eleven;11
\.
copy t from stdin with (format csv, quote '''');
12,'twel,ve',12
\.
copy t from stdin with (format csv, escape '\');
13,"thir\"teen",13
\.
copy t from stdin with (format csv, null 'NULL');
14,NULL,14
15,,15
\.
copy t from stdin with (format csv);
16,,
17,"",17
\.
copy t (a, b) from stdin with (format csv, force_not_null (b));
18,
\.
copy t (a, b) from stdin with (format csv, force_null (b));
19,""
\.
copy t (a, b) from stdin with (format csv);
20,"line
break"
\.
copy t (a, b) from stdin with (format csv);
21,  spaces  
\.
copy t (b) from stdin with (format csv);
just one
\.
select a, b, c from t order by a;
copy t from stdin with (format csv);
x,bad,1
\.
copy t from stdin with (format csv);
30,few
\.
copy t from stdin with (format csv);
31,many,1,2
\.
copy t from stdin with (format csv);
32,"open,1
\.
copy t from stdin with (format csv, delimiter ';;');
33;;x;;1
\.
copy t from stdin with (format text, quote '"');
1
\.
select count(*) from t where a >= 30;

\group To the client
create table t (a int, b text, c numeric(6,2), d date, e boolean);
insert into t values (1, 'one', 1.5, '2026-01-01', true), (2, null, null, null, null), (3, E'tab\there', 3, '2026-03-03', false), (4, E'line\nbreak', 4, null, true), (5, 'a,b "c"', 5, null, null), (6, '', 6, null, null), (7, E'back\\slash', 7, null, null);
create view v as select a, b from t where a < 3;
\try
copy t to stdout;
copy t (a) to stdout;
copy t (b, a) to stdout;
copy t (a, b) to stdout with (format csv);
copy t (a, b) to stdout csv;
copy t (a, b) to stdout with csv header;
copy t (a, b, c) to stdout with (format csv, header);
copy t (a, b) to stdout with (format csv, null 'NULL');
copy t (a, b) to stdout with (format csv, force_quote (b));
copy t (a, b) to stdout with (format csv, force_quote *);
copy t (a, b) to stdout with (format csv, delimiter ';');
copy t (a, b) to stdout with (delimiter '|');
copy t (a, b) to stdout (null '-');
copy t (a, e) to stdout;
copy t (a, d) to stdout;
copy t (a, b) to stdout with (header);
copy (select a, b from t where a = 1) to stdout;
copy (select a + 1 as n, upper(b) from t where a < 3 order by a) to stdout with (format csv, header);
copy (select count(*) from t) to stdout;
copy (values (1, 'x'), (2, 'y')) to stdout;
copy (select 1.50 as n, true as t, null as z) to stdout csv header;
copy (with w as (select a from t) select sum(a) from w) to stdout;
copy (insert into t (a) values (8) returning a) to stdout;
copy (select * from t where false) to stdout;
copy (select array[1, 2], 'a b') to stdout;
copy t (a) to stdout where a = 1;
copy v to stdout;
copy (select * from v) to stdout;
copy nowhere to stdout;
copy t (nothing) to stdout;
copy (select nothing from t) to stdout;
copy (select 1/0) to stdout;
copy t to stdout with (format nosuch);
copy t to '/nonexistent/folder/file';
copy t from '/nonexistent/folder/file';
begin;
copy t (a) to stdout;
commit;
copy t (a) to stdout \bind
