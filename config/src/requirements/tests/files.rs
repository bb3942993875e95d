//! Texts that ask for nothing, and texts that depend on nothing but the index.

use super::*;

#[test]
fn texts_without_requirements() {
    for text in ["", "\n\n", "\u{feff}# numpy", "\r\r\n", "\\\n", "# numpy\n", "  # numpy\n\t\n"] {
        assert!(!requires(text), "{text:?}");
    }
    for text in ["numpy", "# nothing\rnumpy", "[packages]", "\u{c}", "\n numpy # for arrays\n", "-r more.txt"] {
        assert!(requires(text), "{text:?}");
    }
}

#[test]
fn requirements_with_files_are_not_shared() {
    let shared = [
        "cowsay==6.1\n# a comment with ./path\n\nnumpy>=1,<3  # and ./another\n",
        "sentence-transformers ; sys_platform == 'never'",
        "uvicorn[standard,extra] ~= 0.30",
        "a==1.0 \\\n    --hash=sha256:abc \\\n    --hash=sha256:def\n",
        "a==1.0 --hash=sha256:abc",
        "torch==2.1.0+cpu",
    ];
    for text in shared {
        assert!(names_packages_alone(text), "{text:?}");
    }
    let own = [
        "-r more.txt",
        "-c constraints.txt",
        "-e .",
        ".",
        "./vendored.whl",
        "vendored-1.0-py3-none-any.whl",
        "thing @ file:///model/thing",
        "thing @ ./thing",
        "git+https://host/x",
        "--find-links wheels",
        "sub/dir",
        "numpy\n-e ./x",
        "# c\r-r more.txt",
        "numpy\r./x",
        "a==1.0 --hash=sha256:abc -r more.txt",
        "a==1.0 --hash=sha256:abc ./x",
        "a==1.0 --hash=sha256:abc \\\n -c more.txt",
        "a==1.0 --hash\n../x",
        "a==1.0 --hash=./x",
        "a==1.0 --hash=sha256:abc\u{b}-e ./x",
        "--pre\nnumpy",
        "numpy --no-deps",
        "\u{c}numpy",
        "thing.tar.gz",
    ];
    for text in own {
        assert!(!names_packages_alone(text), "{text:?}");
    }
}
