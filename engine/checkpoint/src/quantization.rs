//! `quantization_config` of a model's `config.json`, for AWQ and GPTQ.

use crate::tensor::beginning;
use serde::Deserialize;
use serde_json::Value;

/// Form of the packed matrices of a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Quantization {
    pub(crate) method: Method,
    /// Bits of a quant: 4 or 8.
    pub(crate) bits: u8,
    /// Inputs of a group, `None` if all are one.
    pub(crate) group: Option<usize>,
}

/// Way of packing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Method {
    Awq,
    Gptq {
        /// Zeros are stored less 1.
        v1: bool,
    },
}

/// Greatest size of a group.
const GREATEST_GROUP: i64 = 1 << 20;

#[derive(Deserialize)]
struct Config {
    quantization_config: Option<QuantizationConfig>,
}

/// Fields of both methods. Unknown ones tell how the quants were found, not how they are stored.
#[derive(Deserialize)]
struct QuantizationConfig {
    quant_method: Option<String>,
    #[serde(alias = "w_bit")]
    bits: Option<i64>,
    #[serde(alias = "q_group_size")]
    group_size: Option<i64>,
    /// Kernels of AWQ that the matrices were packed for.
    version: Option<String>,
    /// Format of GPTQ.
    checkpoint_format: Option<String>,
    /// Type of GPTQ's words.
    pack_dtype: Option<String>,
    /// Exceptions of GPTQ by name of a matrix.
    dynamic: Option<Value>,
}

impl Quantization {
    /// Reads the text of `config.json`. `None` if it says nothing of a quantisation.
    ///
    /// # Errors
    ///
    /// The end of a sentence about the file.
    pub(crate) fn parse(config: &str) -> Result<Option<Self>, String> {
        let config: Config = serde_json::from_str(config).map_err(|error| {
            format!("has a quantization_config that cannot be read: {}", beginning(&error.to_string()))
        })?;
        config.quantization_config.map(|config| config.check()).transpose()
    }
}

impl QuantizationConfig {
    fn check(self) -> Result<Quantization, String> {
        let method = match self.quant_method.as_deref() {
            Some("awq") => self.awq()?,
            Some("gptq") => self.gptq()?,
            other => return Err(refused("quant_method", other, "\"awq\" and \"gptq\"")),
        };
        let bits = match self.bits {
            Some(4) => 4,
            Some(8) => 8,
            other => return Err(refused("bits", other, "4 and 8")),
        };
        let group = match self.group_size {
            Some(-1) => None,
            Some(size @ 1..=GREATEST_GROUP) => Some(size as usize),
            other => return Err(refused("group_size", other, "-1 and positive numbers")),
        };
        Ok(Quantization { method, bits, group })
    }

    fn awq(&self) -> Result<Method, String> {
        match self.version.as_deref() {
            None => Ok(Method::Awq),
            Some(version) if version.eq_ignore_ascii_case("gemm") => Ok(Method::Awq),
            other => Err(refused("version", other, "\"gemm\"")),
        }
    }

    fn gptq(&self) -> Result<Method, String> {
        if !matches!(self.pack_dtype.as_deref(), None | Some("int32")) {
            return Err(refused("pack_dtype", self.pack_dtype.as_deref(), "\"int32\""));
        }
        let exceptions = match &self.dynamic {
            None | Some(Value::Null) => false,
            Some(Value::Object(exceptions)) => !exceptions.is_empty(),
            Some(_) => true,
        };
        if exceptions {
            return Err("has exceptions for single matrices in quantization_config.dynamic: not supported".to_owned());
        }
        match self.checkpoint_format.as_deref() {
            None | Some("" | "gptq") => Ok(Method::Gptq { v1: true }),
            Some("gptq_v2") => Ok(Method::Gptq { v1: false }),
            other => Err(refused("checkpoint_format", other, "\"gptq\" and \"gptq_v2\"")),
        }
    }
}

fn refused(field: &str, value: Option<impl std::fmt::Debug>, supported: &str) -> String {
    let value = value.map_or_else(|| "nothing".to_owned(), |value| format!("{value:?}"));
    format!("says {} for quantization_config.{field}; {supported} are supported", beginning(&value))
}
