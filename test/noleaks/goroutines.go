package noleaks

import (
	"strconv"
	"strings"
)

// Stacks counts the goroutines of a profile, pprof's "goroutine" with debug=1, by their stacks:
// "f+0x1 < g+0x2", the function that it began with last. Those that serve the request for the
// profile are left out.
//
// The profile has "COUNT @ ADDRESS…" and a line for each frame.
func Stacks(profile string) map[string]int {
	stacks := map[string]int{}
	for part := range strings.SplitSeq(profile, "\n\n") {
		if i := strings.Index(part, " @ "); i >= 0 {
			head := strings.Fields(part[:i])
			count, err := strconv.Atoi(head[len(head)-1])
			var frames []string
			for line := range strings.Lines(part) {
				if f := strings.Fields(line); len(f) >= 3 && f[0] == "#" {
					frames = append(frames, strings.TrimPrefix(f[2], "github.com/crisp-cri/crisp/"))
				}
			}
			stack := strings.Join(frames, " < ")
			if err == nil && !strings.Contains(stack, "runtime/pprof") && !strings.Contains(stack, "net/http.(*connReader)") {
				stacks[stack] += count
			}
		}
	}
	return stacks
}

// Begun is Stacks by the functions that goroutines began with, wherever they are.
func Begun(profile string) map[string]int {
	begun := map[string]int{}
	for stack, count := range Stacks(profile) {
		frames := strings.Split(stack, " < ")
		name, _, _ := strings.Cut(frames[len(frames)-1], "+0x")
		begun[name] += count
	}
	return begun
}
