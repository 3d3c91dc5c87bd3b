# shellcheck shell=bash disable=SC2034,SC2153
# Starts, finds and stops the cluster's processes. Sourced, never run.
# A process is ours when boot, pid, start time and program name all match what was recorded: a pid alone may have been reused.

# start_time PID: clock ticks since boot at which the process began; fails when there is no such process.
start_time() {
	local stat
	{ stat=$(<"/proc/$1/stat"); } 2>/dev/null || return 1
	stat=${stat##*) } # the program's name may hold blanks and parentheses
	# shellcheck disable=SC2086
	set -- $stat
	[ "$1" != Z ] && echo "${20}"
}

# daemon_pid NAME: prints the pid when the recorded process still runs.
daemon_pid() {
	local boot pid start
	[ -r "$RUN/pids/$1" ] || return 1
	read -r boot pid start _ <"$RUN/pids/$1" || return 1
	[ "$boot" = "$(</proc/sys/kernel/random/boot_id)" ] || return 1
	[ "$(start_time "$pid")" = "$start" ] || return 1
	[ "$(basename "$(readlink "/proc/$pid/exe")" " (deleted)")" = "$1" ] || return 1
	echo "$pid"
}

# daemon NAME FILES -- COMMAND...: makes sure the process runs with exactly this command and these files' contents.
# FILES is a blank-separated list of configuration files that the process reads only at start.
daemon() {
	local name=$1 files=$2 pid want
	shift 3
	# shellcheck disable=SC2086
	want=$( (printf '%s\n' "$@"; [ -z "$files" ] || cat $files) | sha256sum | cut -c1-16)
	if pid=$(daemon_pid "$name"); then
		[ "$(awk '{print $4}' "$RUN/pids/$name")" = "$want" ] && return
		say "$name: its command or configuration changed, restarting it"
		daemon_stop "$name"
	fi
	CHANGED=yes
	mkdir -p "$RUN/pids" "$STATE/log"
	[ ! -s "$STATE/log/$name.log" ] || mv "$STATE/log/$name.log" "$STATE/log/$name.log.1"
	# Its own session: a Ctrl-C in the terminal that ran `up` must not reach it. The lock (9) stays with this script. The
	# process itself records its pid before it becomes the program, so an interrupted `up` starts nothing unrecorded.
	(
		cd /
		pid=$BASHPID
		echo "$(</proc/sys/kernel/random/boot_id) $pid $(start_time "$pid") $want" >"$RUN/pids/$name"
		exec setsid "$@"
	) </dev/null >"$STATE/log/$name.log" 2>&1 9<&- &
	pid=$!
	for _ in {1..100}; do
		daemon_pid "$name" >/dev/null && return
		kill -0 "$pid" 2>/dev/null || break
		sleep 0.02
	done
	log_tail "$name"
	die "$name ended right after its start"
}

# daemon_stop NAME [now]: SIGTERM, then SIGKILL after 3 seconds (the API server waits for open watches much longer than
# anybody here wants to); with `now`, SIGKILL at once.
daemon_stop() {
	local pid
	pid=$(daemon_pid "$1") || return 0
	if [ "${2:-}" != now ]; then
		kill "$pid" 2>/dev/null || return 0
		wait_for 3 "$1 stops on SIGTERM" daemon_gone "$1" 2>/dev/null && return
	fi
	kill -9 "$pid" 2>/dev/null || true
	wait_for 5 "$1 stops on SIGKILL" daemon_gone "$1"
}
daemon_gone() { ! daemon_pid "$1"; }

# log_tail NAME: what the daemon said last, for an error message.
log_tail() {
	printf -- '--- last lines of %s\n' "$STATE/log/$1.log" >&2
	tail -n 15 "$STATE/log/$1.log" >&2 || true
}

# daemon_wait NAME SECONDS WHAT COMMAND...: as wait_for, but fails at once when the daemon dies, and shows its log.
daemon_wait() {
	local name=$1 limit=$2 what=$3
	shift 3
	if ! wait_for "$limit" "$what" ready_or_dead "$name" "$@" || ! daemon_pid "$name" >/dev/null; then
		log_tail "$name"
		die "$name did not come up ($what)"
	fi
}
ready_or_dead() {
	local name=$1
	shift
	"$@" || ! daemon_pid "$name"
}
