//! `hooks!`: exported functions that take the place of the driver's.
//!
//! The macro defines the exported function, the call of the real one, and the table by which `dlsym` and
//! `cuGetProcAddress` find it. A body is safe code.

/// Defines hooks: `fn name(arguments) |real| body;`. `real` is the driver's own function. Outside an instance, and
/// where the body asks for it, the call goes straight on.
macro_rules! hooks {
    ($( fn $symbol:ident($($name:ident: $type:ty),* $(,)?) |$real:ident| $body:expr; )*) => {
        $(
            #[allow(unsafe_code, reason = "exported under the driver's name")]
            #[unsafe(no_mangle)]
            extern "C" fn $symbol($($name: $type),*) -> $crate::abi::CUresult {
                $crate::real::pass();
                let Some(entry) = $crate::real::function!(
                    $symbol as unsafe extern "C" fn($($type),*) -> $crate::abi::CUresult
                ) else {
                    return $crate::abi::NOT_SUPPORTED;
                };
                // SAFETY: the arguments are of the types that the function has, and the caller's, or as good.
                let $real = move |$($name: $type),*| unsafe { entry($($name),*) };
                if !$crate::active() {
                    return $real($($name),*);
                }
                $body
            }
        )*

        /// Address of the hook for an exported symbol of the driver.
        pub(super) fn find(symbol: &str) -> Option<*const std::ffi::c_void> {
            match symbol {
                $( stringify!($symbol) => Some($symbol as *const std::ffi::c_void), )*
                _ => None,
            }
        }
    };
}

pub(super) use hooks;
