//! Files of the page, embedded in the program.

use sha2::{Digest, Sha256};
use std::sync::LazyLock;

/// A file of the page.
#[derive(Debug)]
pub struct Asset {
    /// Path on the listener.
    pub path: &'static str,
    /// Media type.
    pub media_type: &'static str,
    /// Content.
    pub bytes: &'static [u8],
    /// Entity tag, with its quotes.
    pub tag: String,
}

const JAVASCRIPT: &str = "text/javascript; charset=utf-8";

const FILES: &[(&str, &str, &[u8])] = &[
    ("/", "text/html; charset=utf-8", include_bytes!("../web/index.html")),
    ("/page/style.css", "text/css; charset=utf-8", include_bytes!("../web/style.css")),
    ("/page/icon.svg", "image/svg+xml", include_bytes!("../web/icon.svg")),
    ("/page/answers.js", JAVASCRIPT, include_bytes!("../web/answers.js")),
    ("/page/cards.js", JAVASCRIPT, include_bytes!("../web/cards.js")),
    ("/page/dom.js", JAVASCRIPT, include_bytes!("../web/dom.js")),
    ("/page/events.js", JAVASCRIPT, include_bytes!("../web/events.js")),
    ("/page/format.js", JAVASCRIPT, include_bytes!("../web/format.js")),
    ("/page/jobs.js", JAVASCRIPT, include_bytes!("../web/jobs.js")),
    ("/page/logs.js", JAVASCRIPT, include_bytes!("../web/logs.js")),
    ("/page/main.js", JAVASCRIPT, include_bytes!("../web/main.js")),
    ("/page/model.js", JAVASCRIPT, include_bytes!("../web/model.js")),
    ("/page/models.js", JAVASCRIPT, include_bytes!("../web/models.js")),
    ("/page/node.js", JAVASCRIPT, include_bytes!("../web/node.js")),
    ("/page/session.js", JAVASCRIPT, include_bytes!("../web/session.js")),
    ("/page/store.js", JAVASCRIPT, include_bytes!("../web/store.js")),
    ("/page/stream.js", JAVASCRIPT, include_bytes!("../web/stream.js")),
    ("/page/timeline.js", JAVASCRIPT, include_bytes!("../web/timeline.js")),
    ("/page/try.js", JAVASCRIPT, include_bytes!("../web/try.js")),
];

/// All files of the page.
pub static ASSETS: LazyLock<Vec<Asset>> = LazyLock::new(|| {
    let asset = |(path, media_type, bytes): &(&'static str, &'static str, &'static [u8])| {
        let digest = Sha256::digest(bytes);
        let hexadecimal: String = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        Asset { path, media_type, bytes, tag: format!("\"{hexadecimal}\"") }
    };
    FILES.iter().map(asset).collect()
});

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Most bytes of all files together, uncompressed.
    const MOST: usize = 150 * 1000;

    #[test]
    fn the_page_is_small() {
        let all: usize = ASSETS.iter().map(|asset| asset.bytes.len()).sum();
        println!("{all} bytes");
        assert!(all <= MOST, "{all} bytes");
    }

    #[test]
    fn every_file_is_served_and_found() {
        let web = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("web");
        let files = std::fs::read_dir(web).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
        let page = |name: String| if name == "index.html" { "/".to_owned() } else { format!("/page/{name}") };
        let expected: BTreeSet<String> = files.map(page).collect();
        assert_eq!(ASSETS.iter().map(|asset| asset.path.to_owned()).collect::<BTreeSet<_>>(), expected);
    }

    #[test]
    fn nothing_is_fetched_from_elsewhere_and_no_data_becomes_markup() {
        for asset in ASSETS.iter() {
            let text = std::str::from_utf8(asset.bytes).unwrap();
            let text = text.replace("http://www.w3.org/2000/svg", ""); // a name, which nobody fetches
            for word in
                ["http://", "https://", "innerHTML", "outerHTML", "insertAdjacentHTML", "eval(", "document.write"]
            {
                assert!(!text.contains(word), "{}: {word}", asset.path);
            }
            assert!(!text.contains(" style=\"") && !text.contains(" onclick="), "{}", asset.path);
        }
    }
}
