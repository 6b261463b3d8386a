//! Functions with which the catalogue's views show definitions (`dialect/definitions.rs`), and
//! those that `pg_dump` calls.
//!
//! The name of a relation gets its schema if the session's search path has none: PostgreSQL shows
//! names so that they mean the same when they are read again.

use std::collections::HashSet;
use std::sync::Arc;

use rusqlite::functions::Context;
use rusqlite::types::Value;
use rusqlite::{Connection, Result};

use super::scalar::scalar;
use super::strings::quoted_name;
use crate::dialect::definitions;
use crate::dialect::tokens::{Token, TokenKind, tokens};
use crate::settings::Config;
use crate::wire::{arrays, types};
use ums::lock::Lock;

/// Registers the functions with `connection`.
pub(super) fn register(connection: &Connection, config: &Arc<Lock<Config>>) -> Result<()> {
    let owned = Arc::clone(config);
    scalar(connection, "ums_view_definition", 2, move |context| {
        let [Some(text), Some(known)] = [argument(context, 0), argument(context, 1)] else {
            return Ok(Value::Null);
        };
        let known: HashSet<_> = known.split('\n').map(str::to_ascii_lowercase).collect();
        let known = |name: &str| known.contains(&name.to_ascii_lowercase());
        let query = definitions::view(&text, known, is_qualified(&owned));
        Ok(query.map_or(Value::Null, |query| Value::Text(format!(" {query};"))))
    })?;
    scalar(connection, "ums_view_tables", 1, |context| {
        let names = argument(context, 0).map(|text| definitions::tables_of_view(&text));
        let names = names.unwrap_or_default();
        let names: Vec<_> = names.iter().map(|name| arrays::json_string(name)).collect();
        Ok(Value::Text(format!("[{}]", names.join(","))))
    })?;
    scalar(connection, "ums_generated", 2, |context| {
        let arguments = argument(context, 0).zip(argument(context, 1));
        let shown = arguments.and_then(|(text, name)| definitions::generated(&text, &name));
        Ok(shown.map_or(Value::Null, Value::Text))
    })?;
    scalar(connection, "ums_is_numbered", 1, |context| {
        let is_numbered = |text: String| {
            let is_word = |token: &Token<'_>| token.is("autoincrement");
            // Most texts do not have the word at all.
            text.to_ascii_lowercase().contains("autoincrement")
                && tokens(&text).is_ok_and(|list| list.iter().any(is_word))
        };
        Ok(Value::Integer(argument(context, 0).is_some_and(is_numbered).into()))
    })?;
    scalar(connection, "ums_index_definition", 1, |context| {
        let shown = argument(context, 0).and_then(|text| definitions::index(&text, quoted_name));
        Ok(shown.map_or(Value::Null, Value::Text))
    })?;
    let owned = Arc::clone(config);
    scalar(connection, "ums_relation", 1, move |context| {
        let Some(name) = argument(context, 0) else { return Ok(Value::Null) };
        let schema = if is_qualified(&owned) { "public." } else { "" };
        Ok(Value::Text(format!("{schema}{}", quoted_name(&name))))
    })?;
    scalar(connection, "ums_object_name", 1, |context| {
        let Some(text) = argument(context, 0) else { return Ok(Value::Null) };
        Ok(match text.parse() {
            Ok(number) => Value::Integer(number),
            Err(_) => Value::Text(object_name(&text)),
        })
    })?;
    names(connection, config)
}

/// Registers the functions of names, and those of privileges.
fn names(connection: &Connection, config: &Arc<Lock<Config>>) -> Result<()> {
    let owned = Arc::clone(config);
    scalar(connection, "current_schemas", 1, move |context| {
        let with_implicit = context.get::<Option<bool>>(0)? == Some(true);
        let path = search_path(&owned);
        let mut schemas: Vec<_> = path.iter().map(String::as_str).collect();
        schemas.retain(|schema| ["public", "pg_catalog"].contains(schema));
        if with_implicit && !schemas.contains(&"pg_catalog") {
            schemas.insert(0, "pg_catalog");
        }
        Ok(Value::Text(format!("{{{}}}", schemas.join(","))))
    })?;
    // The privileges of everything are the default ones.
    scalar(connection, "acldefault", 2, |_| Ok(Value::Null))
}

fn argument(context: &Context<'_>, at: usize) -> Option<String> {
    let value = context.get_raw(at);
    (value != rusqlite::types::ValueRef::Null).then(|| types::to_text(value))
}

/// Returns whether the names of relations need their schema.
fn is_qualified(config: &Lock<Config>) -> bool {
    !search_path(config).iter().any(|schema| schema == "public")
}

fn search_path(config: &Lock<Config>) -> Vec<String> {
    let path = config.lock().show("search_path").unwrap_or_default();
    path.split(',').map(|schema| schema.trim().trim_matches('"').to_owned()).collect()
}

/// Returns the name of an object without its schema, as it is stored.
fn object_name(text: &str) -> String {
    let list = tokens(text).unwrap_or_default();
    match &list[..] {
        [.., last] if last.is_name() || last.kind == TokenKind::Word => last.folded(),
        _ => text.to_owned(),
    }
}
