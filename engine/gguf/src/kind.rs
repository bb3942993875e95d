//! Types of values.

/// Type of a value, by its number in the format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Whole number of 8 bits.
    U8,
    /// Whole number of 8 bits with a sign.
    I8,
    /// Whole number of 16 bits.
    U16,
    /// Whole number of 16 bits with a sign.
    I16,
    /// Whole number of 32 bits.
    U32,
    /// Whole number of 32 bits with a sign.
    I32,
    /// Floating-point number of 32 bits.
    F32,
    /// Truth value.
    Bool,
    /// String.
    Text,
    /// Whole number of 64 bits.
    U64,
    /// Whole number of 64 bits with a sign.
    I64,
    /// Floating-point number of 64 bits.
    F64,
}

impl Kind {
    /// Type of this number; `None`: there is none.
    #[must_use]
    pub fn of(number: u32) -> Option<Self> {
        Some(match number {
            0 => Self::U8,
            1 => Self::I8,
            2 => Self::U16,
            3 => Self::I16,
            4 => Self::U32,
            5 => Self::I32,
            6 => Self::F32,
            7 => Self::Bool,
            8 => Self::Text,
            10 => Self::U64,
            11 => Self::I64,
            12 => Self::F64,
            _ => return None,
        })
    }

    /// Bytes of a value, `None` for strings.
    #[must_use]
    pub fn size(self) -> Option<u64> {
        match self {
            Self::U8 | Self::I8 | Self::Bool => Some(1),
            Self::U16 | Self::I16 => Some(2),
            Self::U32 | Self::I32 | Self::F32 => Some(4),
            Self::U64 | Self::I64 | Self::F64 => Some(8),
            Self::Text => None,
        }
    }

    /// Whole number of the bytes of a value.
    #[must_use]
    pub fn integer(self, bytes: &[u8]) -> Option<i128> {
        Some(match self {
            Self::U8 => i128::from(*bytes.first()?),
            Self::I8 => i128::from(bytes.first()?.cast_signed()),
            Self::U16 => i128::from(u16::from_le_bytes(bytes.try_into().ok()?)),
            Self::I16 => i128::from(i16::from_le_bytes(bytes.try_into().ok()?)),
            Self::U32 => i128::from(u32::from_le_bytes(bytes.try_into().ok()?)),
            Self::I32 => i128::from(i32::from_le_bytes(bytes.try_into().ok()?)),
            Self::U64 => i128::from(u64::from_le_bytes(bytes.try_into().ok()?)),
            Self::I64 => i128::from(i64::from_le_bytes(bytes.try_into().ok()?)),
            Self::F32 | Self::F64 | Self::Bool | Self::Text => return None,
        })
    }
}
