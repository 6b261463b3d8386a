//! The part of PostgreSQL's catalogue that psql and drivers read, as views over SQLite's own schema
//! table.
//!
//! They are temporary views. They are created on a connection when a statement first mentions one
//! of them. An object's number (oid) is its row number in `sqlite_schema` plus 16384, above the
//! numbers that PostgreSQL reserves. The casts give the columns a type. psql compares numbers with
//! texts, and SQLite compares these in PostgreSQL's way only if the column has a type.
//!
//! PostgreSQL has no views whose names begin with `pg_ums_`; the others are made of them. SQLite
//! has no index for a primary key that is the number of the row: here it has one, whose oid is the
//! row number of its table in `sqlite_schema` plus 2^30; a sequence of a numbered column has that
//! plus 2^30 and 2^29, and the rule of a view that plus 2^29. The constraints are read from the
//! text of CREATE TABLE (`dialect::constraints`); a key that was added later is an index with a
//! comment (`alter.rs`), or with the name of a primary key.

/// Creates all views.
pub(super) const VIEWS: &str = r#"
CREATE TEMP VIEW IF NOT EXISTS pg_namespace AS
  SELECT CAST(2200 AS INTEGER) AS oid, 'public' AS nspname, 6171 AS nspowner,
    '{pg_database_owner=UC/pg_database_owner,=U/pg_database_owner}' AS nspacl, 2615 AS tableoid
  UNION ALL SELECT CAST(11 AS INTEGER), 'pg_catalog', 10, NULL, 2615
  UNION ALL SELECT CAST(13000 AS INTEGER), 'information_schema', 10, NULL, 2615;

CREATE TEMP VIEW IF NOT EXISTS pg_description AS
  SELECT CAST(2200 AS INTEGER) AS objoid, 2615 AS classoid, 0 AS objsubid,
    'standard public schema' AS description, 2609 AS tableoid;

CREATE TEMP VIEW IF NOT EXISTS pg_ums_objects AS
  SELECT s.rowid + 16384 AS oid, s.type AS type, s.tbl_name AS tbl, s.name AS own,
    CASE WHEN s.type = 'index' AND s.name LIKE 'sqlite~_%' ESCAPE '~' THEN
      (SELECT s.tbl_name || CASE l.origin WHEN 'pk' THEN '_pkey' ELSE
          '_' || (SELECT group_concat(x.name, '_') FROM pragma_index_info(s.name) x) || '_key' END
        FROM pragma_index_list(s.tbl_name) l WHERE l.name = s.name)
      ELSE s.name END AS name
  FROM main.sqlite_schema s
  WHERE s.type = 'index' OR
    (s.type IN ('table', 'view') AND s.name NOT LIKE 'sqlite~_%' ESCAPE '~')
  UNION ALL
  SELECT s.rowid + 1073741824, 'index', s.name, NULL, s.name || '_pkey'
  FROM main.sqlite_schema s
  WHERE s.type = 'table' AND s.name NOT LIKE 'sqlite~_%' ESCAPE '~'
    AND EXISTS (SELECT 1 FROM pragma_table_info(s.name) p WHERE p.pk > 0)
    AND NOT EXISTS (SELECT 1 FROM pragma_index_list(s.name) l WHERE l.origin = 'pk')
  UNION ALL
  SELECT s.rowid + 1610612736, 'sequence', s.name, NULL, s.name || '_' || p.name || '_seq'
  FROM main.sqlite_schema s JOIN pragma_table_info(s.name) p
  WHERE s.type = 'table' AND p.pk = 1 AND ums_is_numbered(s.sql);

CREATE TEMP VIEW IF NOT EXISTS pg_class AS
  SELECT CAST(s.oid AS INTEGER) AS oid, s.name AS relname, 2200 AS relnamespace,
    10 AS relowner, CASE s.type WHEN 'index' THEN 403 WHEN 'table' THEN 2 ELSE 0 END AS relam,
    CASE s.type WHEN 'table' THEN 'r' WHEN 'index' THEN 'i' WHEN 'sequence' THEN 'S' ELSE 'v' END
      AS relkind,
    s.oid AS relfilenode, 0 AS reltoastrelid,
    0 AS reltablespace,
    0 AS relpages, -1 AS reltuples, 
    (SELECT count(*) FROM json_each(ums_constraints(s.own, coalesce((SELECT m.sql
      FROM main.sqlite_schema m WHERE m.name = s.own AND m.type = 'table'), ''))) j
      WHERE j.value ->> '$.kind' = 'c') AS relchecks,
    0 AS relhasrules,
    EXISTS (SELECT 1 FROM pragma_foreign_key_list(s.own)) OR EXISTS (SELECT 1
      FROM main.sqlite_schema m JOIN pragma_foreign_key_list(m.name) f
      WHERE m.type = 'table' AND f."table" = s.own COLLATE NOCASE) AS relhastriggers,
    EXISTS (SELECT 1 FROM pragma_index_list(s.own)) OR
      EXISTS (SELECT 1 FROM pragma_table_info(s.own) p WHERE p.pk > 0) AS relhasindex,
    0 AS relrowsecurity, 0 AS relforcerowsecurity, 0 AS relispartition, 0 AS reloftype,
    'p' AS relpersistence, 'd' AS relreplident, NULL AS reloptions, NULL AS relacl, 0 AS relhasoids,
    NULL AS relpartbound, 0 AS reltype, 0 AS relnatts, 0 AS relisshared, 1 AS relispopulated,
    0 AS relfrozenxid, 0 AS relminmxid, 0 AS relrewrite, 0 AS relallvisible, 0 AS relhassubclass,
    1259 AS tableoid
  FROM pg_ums_objects s;

CREATE TEMP VIEW IF NOT EXISTS pg_ums_index_columns AS
  SELECT o.oid AS indexrelid, coalesce(i.name, 'expression') AS name, i.seqno + 1 AS place,
    max(i.cid + 1, 0) AS number,
    coalesce((SELECT t.type FROM pragma_table_info(o.tbl) t WHERE t.name = i.name), '') AS type
  FROM pg_ums_objects o JOIN pragma_index_info(o.own) i WHERE o.type = 'index'
  UNION ALL
  SELECT o.oid, t.name, t.pk, t.cid + 1, t.type
  FROM pg_ums_objects o JOIN pragma_table_xinfo(o.tbl) t
  WHERE o.type = 'index' AND o.own IS NULL AND t.pk > 0;
CREATE TEMP VIEW IF NOT EXISTS pg_ums_index_keys AS
  SELECT indexrelid, count(*) AS count, group_concat(number, ' ' ORDER BY place) AS numbers,
    group_concat('1978', ' ') AS classes, group_concat('0', ' ') AS options,
    group_concat(quote_ident(name), ', ' ORDER BY place) AS names
  FROM pg_ums_index_columns GROUP BY indexrelid;

CREATE TEMP VIEW IF NOT EXISTS pg_ums_serial AS
  SELECT CAST(s.rowid + 1610612736 AS INTEGER) AS oid, s.rowid + 16384 AS relation, s.name AS tbl,
    t.name AS name, t.cid AS cid, s.name || '_' || t.name || '_seq' AS sequence,
    CASE WHEN s.sql LIKE '% INTEGER COLLATE RTRIM%' THEN 20 ELSE 23 END AS type,
    CASE WHEN s.sql LIKE '%CONSTRAINT ums_always %' THEN 'a' ELSE 'd' END AS kind
  FROM main.sqlite_schema s JOIN pragma_table_xinfo(s.name) t
  WHERE s.type = 'table' AND t.pk = 1 AND ums_is_numbered(s.sql);

CREATE TEMP VIEW IF NOT EXISTS pg_sequence AS
  SELECT oid AS seqrelid, type AS seqtypid, 1 AS seqstart, 1 AS seqincrement,
    CASE type WHEN 20 THEN 9223372036854775807 ELSE 2147483647 END AS seqmax, 1 AS seqmin,
    1 AS seqcache, 0 AS seqcycle, 2224 AS tableoid
  FROM pg_ums_serial;

CREATE TEMP VIEW IF NOT EXISTS pg_attribute AS
  SELECT CAST(c.oid AS INTEGER) AS attrelid, p.name AS attname,
    CASE WHEN p.pk = 1 AND p.type = 'INTEGER' AND (SELECT m.sql FROM main.sqlite_schema m
        WHERE m.type = 'table' AND m.name = c.relname) LIKE '% INTEGER COLLATE RTRIM%'
      THEN 20 ELSE ums_type_oid(p.type) END AS atttypid,
    ums_type_width(p.type) AS atttypmod, p.cid + 1 AS attnum, p."notnull" OR p.pk > 0 AS attnotnull,
    p.hidden > 1 OR p.dflt_value IS NOT NULL AS atthasdef,
    0 AS attisdropped, 0 AS attcollation,
    coalesce((SELECT n.kind FROM pg_ums_serial n WHERE n.tbl = c.relname AND n.name = p.name), '')
      AS attidentity,
    CASE WHEN p.hidden > 1 THEN 's' ELSE '' END AS attgenerated,
    'p' AS attstorage, -1 AS attstattarget, '' AS attcompression,
    0 AS attndims, -1 AS attlen, NULL AS attacl, NULL AS attfdwoptions, NULL AS attoptions,
    1 AS attislocal, 'i' AS attalign, 0 AS atthasmissing, NULL AS attmissingval,
    0 AS attinhcount, 1249 AS tableoid
  FROM pg_class c JOIN pragma_table_xinfo(c.relname) p
  WHERE c.relkind IN ('r', 'v') AND p.hidden <> 1
  UNION ALL
  SELECT CAST(c.oid AS INTEGER), p.name, ums_type_oid(p.type), ums_type_width(p.type), p.place,
    0, 0, 0, 0, '', '', 'p', -1, '', 0, -1, NULL, NULL, NULL, 1, 'i', 0, NULL, 0, 1249
  FROM pg_class c JOIN pg_ums_index_columns p ON p.indexrelid = c.oid WHERE c.relkind = 'i';

CREATE TEMP VIEW IF NOT EXISTS pg_attrdef AS
  SELECT c.oid * 1000 + p.cid AS oid, CAST(c.oid AS INTEGER) AS adrelid,
    CAST(p.cid + 1 AS INTEGER) AS adnum,
    CASE WHEN p.hidden > 1 THEN
        ums_generated((SELECT m.sql FROM main.sqlite_schema m
          WHERE m.type = 'table' AND m.name = c.relname), p.name)
      WHEN ums_type_oid(p.type) = 16 AND p.dflt_value IN ('0', '1') THEN
        CASE p.dflt_value WHEN '1' THEN 'true' ELSE 'false' END
      WHEN p.dflt_value LIKE '''%' THEN
        p.dflt_value || '::' || format_type(ums_type_oid(p.type), -1)
      ELSE p.dflt_value END AS adbin, 2604 AS tableoid
  FROM pg_class c JOIN pragma_table_xinfo(c.relname) p
  WHERE c.relkind = 'r' AND (p.hidden > 1 OR p.dflt_value IS NOT NULL);

CREATE TEMP VIEW IF NOT EXISTS pg_index AS
  SELECT CAST(i.oid AS INTEGER) AS indexrelid, CAST(t.oid AS INTEGER) AS indrelid,
    coalesce(l."unique", 1) AS indisunique,
    coalesce(l.origin = 'pk', 1) OR i.name = t.name || '_pkey' OR EXISTS (SELECT 1
      FROM main.sqlite_schema m WHERE m.type = 'index' AND m.name = i.own
      AND m.sql LIKE '%/* PRIMARY KEY */)') AS indisprimary,
    0 AS indisclustered,
    1 AS indisvalid, 1 AS indisready, 1 AS indislive, 0 AS indisreplident, 0 AS indisexclusion,
    1 AS indimmediate, 0 AS indnullsnotdistinct, NULL AS indexprs, NULL AS indpred,
    k.numbers AS indkey, k.classes AS indclass, k.options AS indoption,
    k.count AS indnkeyatts, k.count AS indnatts,
    coalesce(ums_index_definition((SELECT m.sql FROM main.sqlite_schema m
        WHERE m.type = 'index' AND m.name = i.own)),
      'CREATE ' || CASE WHEN coalesce(l."unique", 1) THEN 'UNIQUE ' ELSE '' END || 'INDEX '
      || quote_ident(i.name) || ' ON public.' || quote_ident(t.name) || ' USING btree ('
      || k.names || ')')
      AS ums_definition, 2610 AS tableoid
  FROM pg_ums_objects i JOIN pg_ums_objects t ON t.name = i.tbl AND t.type = 'table'
    LEFT JOIN pragma_index_list(i.tbl) l ON l.name = i.own
    LEFT JOIN pg_ums_index_keys k ON k.indexrelid = i.oid
  WHERE i.type = 'index';

CREATE TEMP VIEW IF NOT EXISTS pg_type AS
  SELECT CAST(column1 AS INTEGER) AS oid, column2 AS typname, 11 AS typnamespace,
    column3 AS typlen, 'b' AS typtype, column4 AS typcategory,
    CAST(CASE column4 WHEN 'A' THEN column5 ELSE 0 END AS INTEGER) AS typelem, 0 AS typrelid,
    CAST(CASE column4 WHEN 'A' THEN 0 ELSE column5 END AS INTEGER) AS typarray, 0 AS typbasetype,
    -1 AS typtypmod, 0 AS typcollation, 10 AS typowner,
    1 AS typisdefined, ',' AS typdelim, 0 AS typnotnull, NULL AS typdefault, NULL AS typacl,
    'p' AS typstorage, 1247 AS tableoid
  FROM (VALUES
    (16, 'bool', 1, 'B', 1000), (17, 'bytea', -1, 'U', 0), (18, 'char', 1, 'S', 0),
    (19, 'name', 64, 'S', 1003), (20, 'int8', 8, 'N', 1016), (21, 'int2', 2, 'N', 1005),
    (23, 'int4', 4, 'N', 1007), (25, 'text', -1, 'S', 1009), (26, 'oid', 4, 'N', 1028),
    (114, 'json', -1, 'U', 0), (700, 'float4', 4, 'N', 0), (701, 'float8', 8, 'N', 1022),
    (1042, 'bpchar', -1, 'S', 0), (1043, 'varchar', -1, 'S', 1015), (1082, 'date', 4, 'D', 0),
    (1083, 'time', 8, 'D', 0), (1114, 'timestamp', 8, 'D', 0), (1184, 'timestamptz', 8, 'D', 0),
    (1186, 'interval', 16, 'T', 0), (1700, 'numeric', -1, 'N', 0),
    (2278, 'void', 4, 'P', 0), (2950, 'uuid', 16, 'U', 0), (3802, 'jsonb', -1, 'U', 0),
    (1000, '_bool', -1, 'A', 16), (1003, '_name', -1, 'A', 19), (1005, '_int2', -1, 'A', 21),
    (1007, '_int4', -1, 'A', 23), (1009, '_text', -1, 'A', 25), (1015, '_varchar', -1, 'A', 1043),
    (1016, '_int8', -1, 'A', 20), (1022, '_float8', -1, 'A', 701), (1028, '_oid', -1, 'A', 26),
    (22, 'int2vector', -1, 'A', 21));

CREATE TEMP VIEW IF NOT EXISTS pg_database AS
  SELECT 5 AS oid, 'ums' AS datname, 10 AS datdba, 6 AS encoding, 'C' AS datcollate,
    'C' AS datctype, NULL AS daticulocale, 'c' AS datlocprovider, NULL AS datacl,
    1 AS datallowconn, 0 AS datistemplate, -1 AS datconnlimit, 1663 AS dattablespace,
    0 AS datfrozenxid, 0 AS datminmxid, NULL AS datcollversion, 1262 AS tableoid;

CREATE TEMP VIEW IF NOT EXISTS pg_roles AS
  SELECT 10 AS oid, 'ums' AS rolname, 1 AS rolsuper, 1 AS rolinherit, 1 AS rolcreaterole,
    1 AS rolcreatedb, 1 AS rolcanlogin, -1 AS rolconnlimit, NULL AS rolvaliduntil,
    0 AS rolreplication, 0 AS rolbypassrls
  UNION ALL SELECT 6171, 'pg_database_owner', 0, 1, 0, 0, 0, -1, NULL, 0, 0;
CREATE TEMP VIEW IF NOT EXISTS pg_user AS
  SELECT rolname AS usename, oid AS usesysid, 1 AS usesuper FROM pg_roles WHERE rolcanlogin;

CREATE TEMP VIEW IF NOT EXISTS pg_am AS SELECT CAST(2 AS INTEGER) AS oid, 'heap' AS amname,
    't' AS amtype, 3 AS amhandler, 2601 AS tableoid
  UNION ALL SELECT CAST(403 AS INTEGER), 'btree', 'i', 330, 2601;
CREATE TEMP VIEW IF NOT EXISTS pg_opclass AS
  SELECT CAST(1978 AS INTEGER) AS oid, 403 AS opcmethod, 'any_ops' AS opcname, 1 AS opcdefault,
    11 AS opcnamespace, 10 AS opcowner, 0 AS opcfamily, 0 AS opcintype, 0 AS opckeytype,
    2616 AS tableoid;
CREATE TEMP VIEW IF NOT EXISTS pg_tablespace AS SELECT 1663 AS oid, 'pg_default' AS spcname;
CREATE TEMP VIEW IF NOT EXISTS pg_settings AS
  SELECT 'server_version' AS name, '15.0' AS setting WHERE 1;
CREATE TEMP VIEW IF NOT EXISTS pg_ums_constraints AS
  SELECT o.oid AS oid, o.name AS tbl, j.key AS place, j.value ->> '$.kind' AS kind,
    j.value ->> '$.name' AS name, j.value ->> '$.index' AS own_index,
    j.value -> '$.columns' AS columns, j.value ->> '$.target' AS target,
    CASE WHEN json_array_length(j.value -> '$.targets') > 0 THEN j.value -> '$.targets' ELSE
      (SELECT json_group_array(p.name) FROM pragma_table_info(j.value ->> '$.target') p
        WHERE p.pk > 0) END AS targets,
    j.value ->> '$.rest' AS rest
  FROM pg_ums_objects o JOIN main.sqlite_schema s ON s.name = o.own AND s.type = 'table'
    JOIN json_each(ums_constraints(s.name, s.sql)) j
  WHERE o.type = 'table'
  UNION ALL
  SELECT t.oid, t.name, 500 + l.seq,
    CASE WHEN s.sql LIKE '%/* UNIQUE */)' THEN 'u' ELSE 'p' END, s.name, s.name,
    (SELECT json_group_array(i.name ORDER BY i.seqno) FROM pragma_index_info(s.name) i), NULL,
    NULL, NULL
  FROM pg_ums_objects t JOIN pragma_index_list(t.name) l
    JOIN main.sqlite_schema s ON s.type = 'index' AND s.name = l.name
  WHERE t.type = 'table' AND l."unique" AND (s.sql LIKE '%/* UNIQUE */)'
    OR s.sql LIKE '%/* PRIMARY KEY */)' OR s.name = t.name || '_pkey');
CREATE TEMP VIEW IF NOT EXISTS pg_constraint AS
  SELECT CAST(k.oid * 1000 + k.place AS INTEGER) AS oid, k.name AS conname, 2200 AS connamespace,
    k.kind AS contype, 0 AS condeferrable, 0 AS condeferred, 1 AS convalidated,
    CAST(k.oid AS INTEGER) AS conrelid, CAST(0 AS INTEGER) AS contypid,
    CAST(coalesce((SELECT x.oid FROM pg_ums_objects x WHERE x.type = 'index' AND x.tbl = k.tbl
      AND x.name = k.own_index AND k.kind IN ('p', 'u')), 0) AS INTEGER) AS conindid,
    CAST(0 AS INTEGER) AS conparentid,
    CAST(coalesce((SELECT r.oid FROM pg_ums_objects r WHERE k.kind = 'f'
      AND r.name = k.target COLLATE NOCASE), 0) AS INTEGER) AS confrelid,
    2606 AS tableoid,
    CASE WHEN k.rest LIKE '%ON UPDATE CASCADE%' THEN 'c' WHEN k.rest LIKE '%ON UPDATE SET NULL%'
      THEN 'n' WHEN k.rest LIKE '%ON UPDATE SET DEFAULT%' THEN 'd'
      WHEN k.rest LIKE '%ON UPDATE RESTRICT%' THEN 'r' ELSE 'a' END AS confupdtype,
    CASE WHEN k.rest LIKE '%ON DELETE CASCADE%' THEN 'c' WHEN k.rest LIKE '%ON DELETE SET NULL%'
      THEN 'n' WHEN k.rest LIKE '%ON DELETE SET DEFAULT%' THEN 'd'
      WHEN k.rest LIKE '%ON DELETE RESTRICT%' THEN 'r' ELSE 'a' END AS confdeltype,
    's' AS confmatchtype, 1 AS conislocal, 0 AS coninhcount,
    1 AS connoinherit,
    (SELECT '{' || group_concat(a.cid + 1, ',' ORDER BY c.key) || '}' FROM json_each(k.columns) c
      JOIN pragma_table_xinfo(k.tbl) a ON a.name = c.value COLLATE NOCASE) AS conkey,
    (SELECT '{' || group_concat(a.cid + 1, ',' ORDER BY c.key) || '}' FROM json_each(k.targets) c
      JOIN pragma_table_xinfo(k.target) a ON a.name = c.value COLLATE NOCASE
      WHERE k.kind = 'f') AS confkey,
    CASE k.kind WHEN 'p' THEN 'PRIMARY KEY (' WHEN 'u' THEN 'UNIQUE (' WHEN 'f' THEN
      'FOREIGN KEY (' ELSE 'CHECK (' END
    || CASE k.kind WHEN 'c' THEN k.rest ELSE
      (SELECT group_concat(quote_ident(c.value), ', ' ORDER BY c.key) FROM json_each(k.columns) c)
      END || ')'
    || CASE k.kind WHEN 'f' THEN ' REFERENCES ' || ums_relation(k.target) || '(' ||
      (SELECT group_concat(quote_ident(c.value), ', ' ORDER BY c.key) FROM json_each(k.targets) c)
      || ')' || k.rest ELSE '' END AS ums_definition
  FROM pg_ums_constraints k;

CREATE TEMP VIEW IF NOT EXISTS pg_tables AS
  SELECT 'public' AS schemaname, relname AS tablename, 'ums' AS tableowner, NULL AS tablespace,
    relhasindex AS hasindexes FROM pg_class WHERE relkind = 'r';
CREATE TEMP VIEW IF NOT EXISTS pg_indexes AS
  SELECT 'public' AS schemaname, t.relname AS tablename, i.relname AS indexname,
    NULL AS tablespace, x.ums_definition AS indexdef
  FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid JOIN pg_class t ON t.oid = x.indrelid;
CREATE TEMP VIEW IF NOT EXISTS pg_ums_views AS
  SELECT s.rowid + 16384 AS relation, s.rowid + 536870912 AS rule, s.name AS name, s.sql AS sql
  FROM main.sqlite_schema s WHERE s.type = 'view';
CREATE TEMP VIEW IF NOT EXISTS pg_views AS
  SELECT 'public' AS schemaname, name AS viewname, 'ums' AS viewowner,
    ums_view_definition(sql, (SELECT group_concat(name, char(10)) FROM main.sqlite_schema
      WHERE type IN ('table', 'view'))) AS definition,
    ums_view_definition(sql, (SELECT group_concat(name, char(10)) FROM main.sqlite_schema
      WHERE type IN ('table', 'view'))) AS ums_definition
  FROM pg_ums_views;
CREATE TEMP VIEW IF NOT EXISTS pg_rewrite AS
  SELECT CAST(rule AS INTEGER) AS oid, '_RETURN' AS rulename,
    CAST(relation AS INTEGER) AS ev_class, '1' AS ev_type, 'O' AS ev_enabled, 1 AS is_instead,
    NULL AS ev_qual, NULL AS ev_action, 2618 AS tableoid
  FROM pg_ums_views;
CREATE TEMP VIEW IF NOT EXISTS pg_depend AS
  SELECT 1259 AS classid, oid AS objid, 0 AS objsubid, 1259 AS refclassid,
    CAST(relation AS INTEGER) AS refobjid, cid + 1 AS refobjsubid, 'i' AS deptype, 2608 AS tableoid
  FROM pg_ums_serial
  UNION ALL
  SELECT 2618, CAST(rule AS INTEGER), 0, 1259, CAST(relation AS INTEGER), 0, 'i', 2608
  FROM pg_ums_views
  UNION ALL
  SELECT 2618, CAST(v.rule AS INTEGER), 0, 1259, CAST(s.rowid + 16384 AS INTEGER), 0, 'n', 2608
  FROM pg_ums_views v JOIN json_each(ums_view_tables(v.sql)) t
    JOIN main.sqlite_schema s ON s.name = t.value COLLATE NOCASE AND s.type IN ('table', 'view');
CREATE TEMP VIEW IF NOT EXISTS pg_ums_names AS
  SELECT name AS name, CAST(oid AS INTEGER) AS oid FROM pg_ums_objects
  UNION ALL SELECT column1, column2 FROM (VALUES ('pg_class', 1259), ('pg_namespace', 2615),
    ('pg_type', 1247), ('pg_attribute', 1249), ('pg_attrdef', 2604), ('pg_index', 2610),
    ('pg_constraint', 2606), ('pg_description', 2609), ('pg_depend', 2608),
    ('pg_rewrite', 2618), ('pg_am', 2601),
    ('pg_opclass', 2616), ('pg_sequence', 2224), ('pg_database', 1262), ('pg_roles', 12048),
    ('pg_proc', 1255), ('pg_trigger', 2620), ('pg_policy', 3256), ('pg_publication', 6104),
    ('pg_tablespace', 1213), ('pg_statistic_ext', 3381))
  UNION ALL SELECT name, oid FROM pg_ums_empty;

CREATE TEMP VIEW IF NOT EXISTS information_schema_tables AS
  SELECT 'ums' AS table_catalog, 'public' AS table_schema, relname AS table_name,
    CASE relkind WHEN 'r' THEN 'BASE TABLE' ELSE 'VIEW' END AS table_type
  FROM pg_class WHERE relkind IN ('r', 'v');
CREATE TEMP VIEW IF NOT EXISTS information_schema_columns AS
  SELECT 'ums' AS table_catalog, 'public' AS table_schema, c.relname AS table_name,
    a.attname AS column_name,
    a.attnum AS ordinal_position, format_type(a.atttypid, -1) AS data_type,
    CASE WHEN a.attnotnull THEN 'NO' ELSE 'YES' END AS is_nullable, d.adbin AS column_default
  FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
    LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
  WHERE c.relkind IN ('r', 'v');
"#;
