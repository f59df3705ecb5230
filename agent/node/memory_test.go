package node

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/opencontainers/cgroups"
)

// Memory agrees with the kubelet's, on both versions of cgroups.
func TestMemory(t *testing.T) {
	cgroups.TestMode = true // as the directories are no cgroup file systems
	t.Cleanup(func() { cgroups.TestMode = false })
	const meminfo = "MemTotal:        1000 kB\nMemFree:          300 kB\nMemAvailable:     800 kB\nInactive(file):   100 kB\n"
	for name, test := range map[string]struct {
		files map[string]string
		want  Memory
	}{
		"v2":                    {map[string]string{"memory.stat": "anon 1\ninactive_file 204800\nactive_file 7\n"}, Memory{1000 << 10, 700 << 10, 500 << 10}},
		"v1":                    {map[string]string{"memory/memory.usage_in_bytes": "614400\n", "memory/memory.stat": "inactive_file 1\ntotal_inactive_file 102400\n"}, Memory{1000 << 10, 600 << 10, 500 << 10}},
		"no cgroups":            {map[string]string{}, Memory{1000 << 10, 700 << 10, 600 << 10}},
		"all of it is inactive": {map[string]string{"memory/memory.usage_in_bytes": "1\n", "memory/memory.stat": "total_inactive_file 2\n"}, Memory{1000 << 10, 1, 0}},
	} {
		dir := t.TempDir()
		test.files["../meminfo"] = ""
		for file, text := range test.files {
			path := filepath.Join(dir, "cgroup", file)
			if file == "../meminfo" {
				text = meminfo
			}
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		got, ok := readMemory(dir, filepath.Join(dir, "cgroup"))
		if !ok || got != test.want || got.Available() != test.want.Total-test.want.WorkingSet {
			t.Errorf("%s: %+v, %v; want %+v", name, got, ok, test.want)
		}
	}
	if _, ok := readMemory("/nowhere", "/nowhere"); ok {
		t.Error("memory is known from nowhere")
	}
	if m, ok := ReadMemory(); !ok || m.WorkingSet == 0 || m.WorkingSet > m.Total || m.WorkingSet > m.Usage {
		t.Errorf("here: %+v, %v", m, ok)
	}
}
