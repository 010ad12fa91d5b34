# Sourced by the scripts that test a running service with third-party clients. Sets `target` (the
# target directory of cargo) and `work` (a directory that is removed at exit, when the service is
# stopped).
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
work=$(mktemp -d)
service=

stop_service() {
    [ -z "$service" ] || kill "$service" 2>/dev/null || true
    [ -z "$service" ] || wait "$service" 2>/dev/null || true
    rm -rf "$work"
}
trap stop_service EXIT

# python_tools NAME CHECK PACKAGE...: creates a virtual environment with the packages at
# `$target/NAME`, unless running CHECK in it succeeds.
python_tools() {
    local tools=$target/$1 check=$2
    shift 2
    if "$tools/bin/python" -c "$check" 2>/dev/null; then return; fi
    if ! python3 -c 'import ensurepip' 2>/dev/null; then
        local apt=(apt-get)
        [ "$(id -u)" -eq 0 ] || apt=(sudo apt-get)
        "${apt[@]}" update -qq
        DEBIAN_FRONTEND=noninteractive "${apt[@]}" install -y -qq python3-venv
    fi
    python3 -m venv --clear "$tools"
    "$tools/bin/pip" install --quiet --disable-pip-version-check "$@"
}

# start_service OPTION...: builds and starts a service in `work` on free ports, with the key
# `secret`; sets `http` (a URL) and `grpc` (an address).
start_service() {
    cargo build --quiet -p pacegate-cli
    : >"$work/out"
    (cd "$work" && exec env PACEGATE_ADMIN_KEY=secret "$target/debug/pacegate" serve --http 127.0.0.1:0 --grpc 127.0.0.1:0 \
        --catalog sqlite::memory: "$@" >out 2>log) &
    service=$!
    for _ in $(seq 300); do
        http=$(sed -n 's/.* \(http:[^ ]*\) (REST).*/\1/p' "$work/out")
        grpc=$(sed -n 's/.* \([^ ]*\) (gRPC).*/\1/p' "$work/out")
        if [ -n "$http" ] && [ -n "$grpc" ]; then return; fi
        kill -0 "$service" 2>/dev/null || break
        sleep 0.1
    done
    echo "the service did not start:" >&2
    cat "$work/log" >&2
    exit 1
}

# fail_with_log: prints the last log lines of the service and exits.
fail_with_log() {
    echo "last log lines of the service:"
    tail -n 20 "$work/log"
    exit 1
}
