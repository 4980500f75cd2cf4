#!/usr/bin/env bash
# Mutation testing: changes the code in one place, again and again, and checks that a unit test fails.
#
#     tests/mutants.sh                        all places, in many hours
#     tests/mutants.sh domain ses             some of them
#     SHARD=0/8 tests/mutants.sh queue        every eighth mutant
#     tests/mutants.sh --changed [COMMIT]     the lines that changed since a commit, in three minutes
#     tests/mutants.sh --list                 the number of mutants of each place
#
# A mutant that no test notices fails the run. Then add a test, delete the code, or write the reason
# into .cargo/mutants.toml. Only the unit tests of the place's crate run. `--changed` takes at most
# MUTANTS_OF_A_PLACE mutants of a place, spread evenly, and MUTANTS_SECONDS for all. What it misses in
# such a sample does not fail it. The script exits with 77 if something was not checked: a sample had a
# mutant that no test noticed, there was no time, it does not find the changes, or a place's tests fail
# without a mutant.
#
# It works on a copy in target/mutants. The results are in target/mutants/results.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

source packaging/tools.sh

readonly ROOT="$PWD/target/mutants"
readonly TREE="$ROOT/tree"
readonly RESULTS="$ROOT/results"
readonly PLACES=(domain ses http limits store queue smtp dispatch)
# Enough for most changes. Large changes are looked at in part.
readonly MUTANTS_OF_A_PLACE="${MUTANTS_OF_A_PLACE:-20}"
readonly MUTANTS_SECONDS="${MUTANTS_SECONDS:-180}"

# Sets the package of a place, its files, and what its tests leave out.
place() {
    package="pillarbox-$1" files=("src/$1/**") skipped=()
    case $1 in
        domain | queue) ;;
        ses) files=(src/ses/{classify,signing}.rs) ;;
        http) files=(src/http/{framing,head}.rs) ;;
        limits) package=pillarbox-runtime files=('src/runtime/shared_limits.rs' 'src/runtime/shared_limits/**') ;;
        store)
            files=(src/store/record.rs 'src/store/record/**'
                src/store/{alerts,api_keys,dead_letters,directory,domains,feed,history,listing}.rs
                src/store/{lost_messages,messages,organisation_counts,organisations,purge}.rs
                src/store/{sending_right,suppression_filter,suppressions,timeline,transitions}.rs
                src/store/{usage,webhooks}.rs)
            # Tests of the data file's engine, which take most of the time.
            skipped=(--skip redb::)
            ;;
        smtp) files=(src/smtp/{address_field,command,fields,line,reply}.rs) ;;
        dispatch)
            # The rest of it needs the whole service.
            files=(src/dispatch/{circuit_breaker,paused_domains,provider_health}.rs
                src/dispatch/{recent_calls,refusal_runs,token_bucket}.rs)
            ;;
        *) printf 'There is no place "%s". The places are: %s\n' "$1" "${PLACES[*]}" >&2; exit 2 ;;
    esac
    selection=(--package "$package")
    for file in "${files[@]}"; do selection+=(--file "$file"); done
}

# Copies the files that git knows. Their times are new, so that cargo builds them again: it may have
# built a mutant of them.
copy_tree() {
    rm -rf "$TREE"
    mkdir -p "$TREE"
    git ls-files -z | while IFS= read -r -d '' file; do
        if [[ -e $file ]]; then printf '%s\0' "$file"; fi
    done | tar -cf - --null -T - | tar -xmf - -C "$TREE"
    # A mutant is built for tests of a few seconds.
    sed -i '/^\[profile.dev.package.pillarbox-/,+1 s/^opt-level = 1$/opt-level = 0/' "$TREE/Cargo.toml"
}

count() { if [[ -f $1 ]]; then wc -l <"$1"; else echo 0; fi; }

# Runs the mutants of a place: its name, and options. If `seconds_left` has a number, it is the time.
run_place() {
    local name="$1" limit=() status=0 out="$RESULTS/$1/mutants.out" all started
    shift
    place "$name"
    all="$(cd "$TREE" && cargo-mutants mutants --list "${selection[@]}" "$@" 2>/dev/null | wc -l)"
    if ((all == 0)); then return; fi
    if [[ -n ${SHARD-} ]]; then
        set -- "$@" --shard "$SHARD" --sharding round-robin
    elif [[ -n $seconds_left ]] && ((all > MUTANTS_OF_A_PLACE)); then
        local shards=$(((all + MUTANTS_OF_A_PLACE - 1) / MUTANTS_OF_A_PLACE))
        set -- "$@" --shard "0/$shards" --sharding round-robin
    fi
    if [[ -n $seconds_left ]] && ((seconds_left <= 0)); then
        printf 'NOT CHECKED: %s: no time was left for its %d mutants\n' "$name" "$all"
        not_checked=1
        return
    fi
    # Dependencies are built before the time starts.
    mkdir -p "$RESULTS/$name"
    if ! (cd "$TREE" && cargo test --no-run --package "$package" --lib) >"$RESULTS/$name/log" 2>&1; then
        tail -n 20 "$RESULTS/$name/log"
        printf 'NOT CHECKED: %s: its unit tests cannot be built in the copy\n' "$name"
        not_checked=1
        return
    fi
    if [[ -n $seconds_left ]]; then limit=(timeout --signal INT --kill-after 30 "$seconds_left"); fi
    started=$SECONDS
    rm -rf "$out"
    (cd "$TREE" && "${limit[@]}" cargo-mutants mutants --in-place --colors never "${selection[@]}" \
        --cargo-arg=--lib --timeout-multiplier 10 --minimum-test-timeout 30 --build-timeout 900 \
        --output "$RESULTS/$name" "$@" -- -- "${skipped[@]}") >"$RESULTS/$name/log" 2>&1 || status=$?
    if [[ -n $seconds_left ]]; then seconds_left=$((seconds_left - (SECONDS - started))); fi

    local caught missed timed_out unviable tested
    caught="$(count "$out/caught.txt")" missed="$(count "$out/missed.txt")"
    timed_out="$(count "$out/timeout.txt")" unviable="$(count "$out/unviable.txt")"
    tested=$((caught + missed + timed_out + unviable))
    printf '%s: %d of %d mutants: %d caught, %d missed, %d timed out, %d not valid Rust\n' \
        "$name" "$tested" "$all" "$caught" "$missed" "$timed_out" "$unviable"
    if ((missed > 0)); then
        sed 's/^/MISSED: /' "$out/missed.txt"
        # Another run would take another sample.
        if [[ -z $seconds_left ]] || ((tested == all)); then
            survivors=1
        else
            printf 'NOT CHECKED: %s: of a sample, no test noticed %d mutants\n' "$name" "$missed"
            not_checked=1
        fi
    fi
    if ((timed_out > 0)); then sed 's/^/TIMED OUT: /' "$out/timeout.txt"; fi
    # 2 and 3 are for mutants that were missed or timed out. The limit may end a run at any moment.
    if [[ -n $seconds_left ]] && ((seconds_left <= 0)); then return; fi
    if ((status != 0 && status != 2 && status != 3)); then
        tail -n 20 "$RESULTS/$name/log"
        printf 'NOT CHECKED: %s: see %s\n' "$name" "$RESULTS/$name/log"
        not_checked=1
    fi
}

# The commit with which `--changed` compares: the one at which this branch left origin/main, or else
# the last one's parent.
base() {
    local base
    base="$(git merge-base HEAD origin/main 2>/dev/null)" || base=''
    if [[ -z $base || $base = "$(git rev-parse HEAD)" ]]; then
        base="$(git rev-parse --verify --quiet 'HEAD~1^{commit}')" || return 1
    fi
    printf '%s\n' "$base"
}

install_cargo cargo-mutants "$CARGO_MUTANTS_VERSION"
# With the dependencies that are built already.
export CARGO_TARGET_DIR="$PWD/target"
survivors=0 not_checked=0 seconds_left=''
mkdir -p "$RESULTS"
exec {lock}>"$ROOT/lock"
if ! flock --nonblock "$lock"; then
    echo 'Another run is under way in target/mutants.' >&2
    exit 1
fi

case ${1-} in
    --changed)
        if [[ -n ${2-} ]]; then
            from="$2"
        elif ! from="$(base)"; then
            echo 'NOT CHECKED: this clone has no earlier commit'
            exit 77
        fi
        copy_tree
        git diff --no-color --no-ext-diff --src-prefix=a/ --dst-prefix=b/ "$from" -- '*.rs' >"$RESULTS/diff"
        printf 'Mutants of the lines that changed since %s\n' "$(git log -1 --format='%h, %s' "$from")"
        seconds_left=$MUTANTS_SECONDS
        for name in "${PLACES[@]}"; do run_place "$name" --in-diff "$RESULTS/diff"; done
        ;;
    --list)
        copy_tree
        for name in "${PLACES[@]}"; do
            place "$name"
            printf '%s: %d\n' "$name" \
                "$(cd "$TREE" && cargo-mutants mutants --list "${selection[@]}" 2>/dev/null | wc -l)"
        done
        ;;
    *)
        if (($# == 0)); then set -- "${PLACES[@]}"; fi
        for name in "$@"; do place "$name"; done
        copy_tree
        for name in "$@"; do run_place "$name"; done
        ;;
esac

if ((survivors)); then
    printf '%s\n' 'No test notices these mutants. For each one, write a test that says what must hold, delete the' \
        'code if it is not needed, or add the reason to .cargo/mutants.toml if nothing can be observed.'
    exit 1
fi
if ((not_checked)); then exit 77; fi
