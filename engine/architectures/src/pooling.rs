//! Embeddings by the files of sentence-transformers, or by GGUF's keys.

use crate::architecture::field;
use crate::error::ConfigError;
use crate::reader::{self, Reader};
use crate::source::SentenceTransformer;
use omni_kernels::model::{Output, Pooling};
use serde_json::{Map, Value as Json};

const MODULES: &str = "modules.json";
const POOLING: &str = "1_Pooling/config.json";

/// Keys of older files, each a flag.
const MODES: &[(&str, Option<Pooling>)] = &[
    ("pooling_mode_mean_tokens", Some(Pooling::Mean)),
    ("pooling_mode_cls_token", Some(Pooling::First)),
    ("pooling_mode_lasttoken", Some(Pooling::Last)),
    ("pooling_mode_max_tokens", None),
    ("pooling_mode_mean_sqrt_len_tokens", None),
    ("pooling_mode_weightedmean_tokens", None),
];

/// Output by the files of sentence-transformers: without them the mean of the tokens, as that library makes it.
pub(crate) fn output(files: &SentenceTransformer<'_>) -> Result<Output, ConfigError> {
    let normalised = files.modules.map_or(Ok(false), modules)?;
    let pooling = files.pooling.map_or(Ok(Pooling::Mean), pooling)?;
    Ok(Output::Embedding { pooling, normalised })
}

/// Output by GGUF's key. Embeddings of such files are normalised, as those who convert to GGUF expect it.
pub(crate) fn gguf(reader: &Reader<'_>) -> Result<Output, ConfigError> {
    let kind = field("", "pooling_type");
    let pooling = match reader.whole(&kind, 1 << 16)? {
        None | Some(1) => Pooling::Mean,
        Some(2) => Pooling::First,
        Some(3) => Pooling::Last,
        Some(other) => return Err(ConfigError::field(reader.name(&kind), other, "which is not supported")),
    };
    Ok(Output::Embedding { pooling, normalised: true })
}

/// Reads the list of modules. Returns true if the last of them normalises.
fn modules(text: &str) -> Result<bool, ConfigError> {
    let list: Vec<Map<String, Json>> =
        serde_json::from_str(text).map_err(|error| ConfigError::file(MODULES, &error))?;
    let mut normalised = false;
    for (position, module) in list.iter().enumerate() {
        let kind = module.get("type").and_then(Json::as_str).unwrap_or_default();
        match (position, kind.rsplit('.').next().unwrap_or_default()) {
            (0, "Transformer") | (1, "Pooling") => {}
            (2, "Normalize") => normalised = true,
            _ => {
                let field = format!("{MODULES}[{position}].type");
                return Err(ConfigError::field(field, format!("{kind:?}"), "which is not supported at this place"));
            }
        }
    }
    Ok(normalised)
}

fn pooling(text: &str) -> Result<Pooling, ConfigError> {
    let fields = reader::object(POOLING, text)?;
    let named = |field: &str| format!("{POOLING}: {field}");
    if let Some(mode) = fields.get("pooling_mode").and_then(Json::as_str) {
        return match mode {
            "mean" => Ok(Pooling::Mean),
            "cls" => Ok(Pooling::First),
            "lasttoken" => Ok(Pooling::Last),
            other => Err(ConfigError::field(named("pooling_mode"), format!("{other:?}"), "which is not supported")),
        };
    }
    let mut chosen = None;
    for (name, pooling) in MODES {
        if fields.get(*name).and_then(Json::as_bool) != Some(true) {
            continue;
        }
        let Some(pooling) = pooling else {
            return Err(ConfigError::field(named(name), true, "which is not supported"));
        };
        if chosen.replace(*pooling).is_some() {
            return Err(ConfigError::field(named(name), true, "beside another mode, which is not supported"));
        }
    }
    chosen.ok_or_else(|| ConfigError::Missing { field: named("pooling_mode_mean_tokens") })
}
