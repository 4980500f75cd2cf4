# Versions of the programs that build, check and sign packages, and how they are installed; other scripts
# source this file. The programs are installed below target/ci and used again.

readonly TOOLS="$PWD/target/ci"
readonly DENY_VERSION=0.20.2
readonly CARGO_DEB_VERSION=3.8.0
readonly CARGO_MUTANTS_VERSION=27.1.0
readonly CARGO_AUDITABLE_VERSION=0.7.7
readonly CARGO_ZIGBUILD_VERSION=0.24.0
readonly ZIG_VERSION=0.17.1
readonly CYCLONEDX_VERSION=11.12.0
readonly IN_TOTO_VERSION=0.9.3

require() {
    command -v "$1" >/dev/null || { printf '%s needs %s, which is not installed.\n' "$0" "$1" >&2; exit 1; }
}

# Installs a program of crates.io: name, version. Each version has a directory of its own, so that a new
# version is never taken for the old.
install_cargo() {
    local root="$TOOLS/$1-$2"
    if [[ ! -x "$root/bin/$1" ]]; then
        CARGO_PROFILE_DEV_DEBUG=0 cargo install "$1" --debug --locked --version "$2" --root "$root" --target-dir "$TOOLS/build"
        rm -rf "$TOOLS/build"
    fi
    PATH="$root/bin:$PATH"
}

# Installs a Python program in an environment of its own: name, version, the program that it has.
install_python() {
    local venv="$TOOLS/$1-$2"
    if [[ ! -x "$venv/bin/$3" ]]; then
        rm -rf "$venv"
        python3 -m venv "$venv"
        "$venv/bin/pip" install --quiet --disable-pip-version-check "${4:-$1}==$2"
    fi
    # At the end, so that it has only the programs that are not found elsewhere.
    PATH="$PATH:$venv/bin"
    require "$3"
}

# Everything that packaging/build.sh needs. zig has the linker, the C compiler and the C library for
# static binaries.
install_build_tools() {
    install_cargo cargo-deb "$CARGO_DEB_VERSION"
    install_cargo cargo-auditable "$CARGO_AUDITABLE_VERSION"
    install_python cargo-zigbuild "$CARGO_ZIGBUILD_VERSION" cargo-zigbuild
    install_python ziglang "$ZIG_VERSION" python-zig
    CARGO_ZIGBUILD_ZIG_PATH="$(echo "$TOOLS/ziglang-$ZIG_VERSION"/lib/python3*/site-packages/ziglang/zig)"
    export CARGO_ZIGBUILD_ZIG_PATH
}
