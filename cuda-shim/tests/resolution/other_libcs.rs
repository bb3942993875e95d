//! Programs of another C library, whose loader reads `LD_PRELOAD` as well: they run, though the shim is of no use to
//! them.

use crate::programs::{built, compile};
use std::process::Command;
use tempfile::TempDir;

/// Output of a program that ends with success.
fn printed(command: &mut Command) -> String {
    let output = command.output().expect("it runs");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn the_shim_needs_no_symbol_of_glibcs_loader_alone() {
    let dynamic = printed(Command::new("readelf").arg("-dW").arg(built("libomni_cuda.so")));
    let needed: Vec<_> = dynamic.lines().filter(|line| line.contains("(NEEDED)")).collect();
    assert!(matches!(needed[..], [one] if one.contains("[libc.so.6]")), "{needed:?}");
    let symbols = printed(Command::new("nm").args(["-D", "--undefined-only"]).arg(built("libomni_cuda.so")));
    let strong = symbols.lines().filter_map(|line| line.trim().strip_prefix("U "));
    let foreign: Vec<_> = strong.filter(|name| name.starts_with("_Unwind") || name.starts_with("__register")).collect();
    assert!(foreign.is_empty() && symbols.contains("U malloc"), "{foreign:?}\n{symbols}");
}

/// Runs where a compiler for musl is installed.
#[test]
fn a_musl_program_starts_and_finds_its_own_functions() {
    if Command::new("musl-gcc").arg("--version").output().is_err() {
        return;
    }
    let folder = TempDir::new().expect("a directory");
    let (source, program) = (folder.path().join("musl.c"), folder.path().join("musl"));
    let code = "#define _GNU_SOURCE\n#include <dlfcn.h>\n#include <stdio.h>\n#include <unistd.h>\n#include <sys/wait.h>\n\
                int main(void) { void *libc = dlopen(0, RTLD_NOW); int status = 1; if (!fork()) return 0; wait(&status);\n\
                printf(\"%d %d %d\\n\", dlsym(libc, \"puts\") != 0, dlsym(RTLD_DEFAULT, \"no such thing\") != 0, status);\n\
                return 0; }\n";
    std::fs::write(&source, code).expect("a file");
    printed(Command::new("musl-gcc").arg(&source).arg("-o").arg(&program));
    let run = |active: bool| {
        let mut command = Command::new(&program);
        command.env("LD_PRELOAD", built("libomni_cuda.so"));
        if active {
            command.env("OMNI_GPU_LIMIT_BYTES", "1048576").env("OMNI_GPU_ACCOUNT", folder.path().join("account"));
        }
        printed(&mut command)
    };
    assert_eq!([false, true].map(run), ["1 0 0\n", "1 0 0\n"]);
}

/// The shim's own unwinder, which does not unwind, leaves a program's alone.
#[test]
fn programs_keep_their_own_unwinder() {
    let folder = TempDir::new().expect("a directory");
    let (source, program) = (folder.path().join("unwinds.c"), folder.path().join("unwinds"));
    let code = "#include <stdio.h>\n#include <unwind.h>\n\
                static _Unwind_Reason_Code step(struct _Unwind_Context *c, void *n) { (void)c; ++*(int *)n; return 0; }\n\
                int main(void) { int frames = 0; _Unwind_Backtrace(step, &frames); printf(\"%d\\n\", frames > 1); return 0; }\n";
    std::fs::write(&source, code).expect("a file");
    compile(&source, &program, &["-lgcc_s", "-fexceptions"]);
    let mut command = Command::new(&program);
    assert_eq!(printed(command.env("LD_PRELOAD", built("libomni_cuda.so"))), "1\n");
}
