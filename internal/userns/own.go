package userns

import (
	"fmt"
	"os"
	"strings"
	"sync"
)

// Own returns the IDs of the user namespace that this process is in, nil in the machine's first one.
//
// Host is 0: inside, the IDs are what they are. They count from 0 on, whatever ranges they are outside.
var Own = sync.OnceValue(func() *Map { return own("/proc/self") })

// KeepsGroups reports whether no process of the user namespace can change its supplementary groups: a
// user who is permitted no range of IDs must not leave a group that denies access to him
// (user_namespaces(7)).
var KeepsGroups = sync.OnceValue(func() bool {
	text, _ := os.ReadFile("/proc/self/setgroups")
	return strings.TrimSpace(string(text)) == "deny"
})

// own reads the IDs of the process at proc, a directory of procfs.
func own(proc string) *Map {
	users, err := os.ReadFile(proc + "/uid_map")
	if err != nil || strings.Join(strings.Fields(string(users)), " ") == "0 0 4294967295" {
		return nil // the kernel has none, or this is the first
	}
	groups, _ := os.ReadFile(proc + "/gid_map")
	return &Map{UID: Range{Length: reach(string(users))}, GID: Range{Length: reach(string(groups))}}
}

// reach returns how many IDs from 0 on a map has.
func reach(text string) (n uint32) {
	for grew := true; grew; {
		grew = false
		for line := range strings.Lines(text) {
			var inside, outside, length uint32
			if c, err := fmt.Sscan(line, &inside, &outside, &length); c == 3 && err == nil && inside == n && length > 0 && n+length > n {
				n, grew = n+length, true
			}
		}
	}
	return n
}
