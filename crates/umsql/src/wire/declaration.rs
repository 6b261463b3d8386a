//! A type as it is written in a declaration: `numeric(5,2)`, `timestamp(3) without time zone`.

use super::types;

/// Returns a type as it is declared.
pub(crate) fn declaration(oid: u32, modifier: i32) -> String {
    let name = types::name(oid);
    let numbers = match oid {
        _ if modifier < 0 => None,
        types::NUMERIC => types::digits(modifier).map(|(all, behind)| format!("{all},{behind}")),
        types::VARCHAR | types::BPCHAR => types::length(modifier).map(|length| length.to_string()),
        types::TIME | types::TIMESTAMP | types::TIMESTAMPTZ => Some(modifier.to_string()),
        _ => None,
    };
    match (numbers, name.split_once(' ')) {
        (None, _) => name.to_owned(),
        // `timestamp(3) without time zone`
        (Some(numbers), Some((first, rest))) if rest.ends_with("zone") => {
            format!("{first}({numbers}) {rest}")
        }
        (Some(numbers), _) => format!("{name}({numbers})"),
    }
}
