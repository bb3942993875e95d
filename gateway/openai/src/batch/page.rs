//! Part of a list that a client asks for.

use omni_codec::openapi::{Parameter, schema_of};
use omni_request_error::{InvalidCode, InvalidRequest};

/// Entries of a list without `limit`.
const USUAL: usize = 20;
/// Most entries of a part of a list.
const MOST: usize = 100;

/// Parameters of lists.
pub const PAGE: &[Parameter] = &[
    Parameter { name: "after", description: "Identifier of the last entry before", schema: schema_of::<String> },
    Parameter { name: "limit", description: "Most entries, up to 100", schema: schema_of::<u32> },
];

/// Part of a list that a client asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageQuery {
    /// Identifier of the last entry before.
    pub after: Option<String>,
    /// Most entries.
    pub limit: usize,
    /// Purpose of the files.
    pub purpose: Option<String>,
}

impl PageQuery {
    /// Reads the query of an address.
    ///
    /// # Errors
    /// An unknown parameter, or a value out of bounds.
    pub fn parse(query: Option<&str>) -> Result<Self, InvalidRequest> {
        let mut page = Self { after: None, limit: USUAL, purpose: None };
        for pair in query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            match name {
                "after" => page.after = Some(value.to_owned()).filter(|after| !after.is_empty()),
                "limit" => {
                    // Lists of files may be asked for ten thousand entries.
                    let limit = value.parse::<usize>().ok().filter(|limit| *limit > 0);
                    let limit =
                        limit.ok_or_else(|| InvalidRequest::new("limit", "`limit` has to be a whole number"))?;
                    page.limit = limit.min(MOST);
                }
                "purpose" => page.purpose = Some(value.to_owned()).filter(|purpose| !purpose.is_empty()),
                "order" if value == "desc" => {}
                "order" => return Err(InvalidRequest::unsupported("order", "lists have the newest entry first")),
                _ => {
                    let name: String = name.chars().take(64).collect();
                    let message = format!("unknown parameter `{name}`: there are after, limit and purpose");
                    return Err(InvalidRequest::new(name, message).with_code(InvalidCode::Unknown));
                }
            }
        }
        Ok(page)
    }
}

#[test]
fn queries() {
    let page = |query: &str| PageQuery::parse(Some(query));
    let expected = PageQuery { after: Some("file-1".into()), limit: 5, purpose: Some("batch".into()) };
    assert_eq!(page("after=file-1&limit=5&purpose=batch&order=desc"), Ok(expected));
    assert_eq!(page("limit=10000").unwrap().limit, MOST);
    assert_eq!(PageQuery::parse(None).unwrap().limit, USUAL);
    for (query, parameter) in [("limit=0", "limit"), ("limit=x", "limit"), ("order=asc", "order"), ("foo=1", "foo")] {
        assert_eq!(page(query).unwrap_err().parameter.as_deref(), Some(parameter), "{query}");
    }
}
