//! How the library is linked.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // The name by which the proxy needs this library, and finds the preloaded one.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libomni_cuda.so");
    // Ours means ours in here, when somebody else's library of the same functions is preloaded before it.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic-functions");
}
