//! The parts of PostgreSQL's catalogue that have no rows here: what this server does not have, such
//! as languages, operators and extensions of the user's own. `pg_dump` reads all of them.

/// The names of the views, the numbers of PostgreSQL's tables, and the columns.
const EMPTY: &[(&str, u32, &str)] = &[
    (
        "pg_amop",
        2602,
        "oid amopfamily amoplefttype amoprighttype amopstrategy amoppurpose amopopr amopmethod \
         amopsortfamily",
    ),
    ("pg_amproc", 2603, "oid amprocfamily amproclefttype amprocrighttype amprocnum amproc"),
    ("pg_auth_members", 1261, "roleid member grantor admin_option"),
    ("pg_cast", 2605, "oid castsource casttarget castfunc castcontext castmethod"),
    (
        "pg_collation",
        3456,
        "oid collname collnamespace collowner collprovider collisdeterministic collencoding \
         collcollate collctype colliculocale collversion",
    ),
    (
        "pg_conversion",
        2607,
        "oid conname connamespace conowner conforencoding contoencoding conproc condefault",
    ),
    ("pg_default_acl", 826, "oid defaclrole defaclnamespace defaclobjtype defaclacl"),
    ("pg_enum", 3501, "oid enumtypid enumsortorder enumlabel"),
    ("pg_event_trigger", 3466, "oid evtname evtevent evtowner evtfoid evtenabled evttags"),
    (
        "pg_extension",
        3079,
        "oid extname extowner extnamespace extrelocatable extversion extconfig extcondition",
    ),
    (
        "pg_foreign_data_wrapper",
        2328,
        "oid fdwname fdwowner fdwhandler fdwvalidator fdwacl fdwoptions",
    ),
    ("pg_foreign_server", 1417, "oid srvname srvowner srvfdw srvtype srvversion srvacl srvoptions"),
    ("pg_foreign_table", 3118, "ftrelid ftserver ftoptions"),
    ("pg_inherits", 2611, "inhrelid inhparent inhseqno inhdetachpending"),
    ("pg_init_privs", 3394, "objoid classoid objsubid privtype initprivs"),
    (
        "pg_language",
        2612,
        "oid lanname lanowner lanispl lanpltrusted lanplcallfoid laninline lanvalidator lanacl",
    ),
    ("pg_largeobject_metadata", 2995, "oid lomowner lomacl"),
    (
        "pg_operator",
        2617,
        "oid oprname oprnamespace oprowner oprkind oprcanmerge oprcanhash oprleft oprright \
         oprresult oprcom oprnegate oprcode oprrest oprjoin",
    ),
    ("pg_opfamily", 2753, "oid opfmethod opfname opfnamespace opfowner"),
    ("pg_publication_namespace", 6237, "oid pnpubid pnnspid"),
    (
        "pg_range",
        3541,
        "rngtypid rngsubtype rngmultitypid rngcollation rngsubopc rngcanonical rngsubdiff",
    ),
    ("pg_seclabels", 12099, "objoid classoid objsubid objtype objnamespace objname provider label"),
    ("pg_shseclabel", 3592, "objoid classoid provider label"),
    (
        "pg_subscription",
        6100,
        "oid subdbid subskiplsn subname subowner subenabled subbinary substream subtwophasestate \
         subdisableonerr subconninfo subslotname subsynccommit subpublications",
    ),
    ("pg_transform", 3576, "oid trftype trflang trffromsql trftosql"),
    ("pg_ts_config", 3602, "oid cfgname cfgnamespace cfgowner cfgparser"),
    ("pg_ts_dict", 3600, "oid dictname dictnamespace dictowner dicttemplate dictinitoption"),
    (
        "pg_ts_parser",
        3601,
        "oid prsname prsnamespace prsstart prstoken prsend prsheadline prslextype",
    ),
    ("pg_ts_template", 3764, "oid tmplname tmplnamespace tmplinit tmpllexize"),
];

/// Returns the statements that create the views, and `pg_ums_empty`, which has their numbers.
pub(super) fn views() -> String {
    let column = |name: &str| match name {
        "oid" => "CAST(NULL AS INTEGER) AS oid".to_owned(),
        name => format!("NULL AS {name}"),
    };
    let view = |(name, oid, columns): &(&str, u32, &str)| {
        let columns: Vec<_> = columns.split(' ').map(column).collect();
        format!(
            "CREATE TEMP VIEW IF NOT EXISTS {name} AS SELECT {oid} AS tableoid, {} WHERE 0;\n",
            columns.join(", ")
        )
    };
    let number = |(name, oid, _): &(&str, u32, &str)| format!("('{name}', {oid})");
    let numbers: Vec<_> = EMPTY.iter().map(number).collect();
    let views: String = EMPTY.iter().map(view).collect();
    format!(
        "{views}CREATE TEMP VIEW IF NOT EXISTS pg_ums_empty AS \
         SELECT column1 AS name, column2 AS oid FROM (VALUES {});",
        numbers.join(", ")
    )
}
