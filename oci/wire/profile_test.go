package wire

import (
	"encoding/json"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// A request is the same, whoever decodes its profile.
func TestDecodeRun(t *testing.T) {
	profile := &specs.LinuxSeccomp{DefaultAction: specs.ActErrno, Syscalls: []specs.LinuxSyscall{{Names: []string{`}"{\`}, Action: specs.ActAllow}}}
	device := map[string]specs.LinuxNetDevice{"seccomp": {Name: "eth1"}}
	lies := map[string]string{"a": `"seccomp":{"defaultAction":"SCMP_ACT_ALLOW"}`, `"seccomp":{`: "}"}
	for name, linux := range map[string]*specs.Linux{
		"plain": {Seccomp: profile}, "none": {}, "no linux": nil,
		"device": {NetDevices: device}, "device and profile": {NetDevices: device, Seccomp: profile},
		"rest": {Seccomp: profile, RootfsPropagation: "rslave", CgroupsPath: "/a"},
	} {
		sent := RunRequest{Settings: Settings{ID: "a"}, Spec: &specs.Spec{Annotations: lies, Hostname: `"seccomp":{`, Linux: linux}, Fast: true}
		body, err := json.Marshal(sent)
		if err != nil {
			t.Fatal(err)
		}
		got, err := (&Call{body: body}).DecodeRun(func(text []byte) (s *specs.LinuxSeccomp, err error) {
			err = json.Unmarshal(text, &s)
			return s, err
		})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if again, _ := json.Marshal(got); string(again) != string(body) {
			t.Errorf("%s: %s was decoded as\n%s", name, body, again)
		}
	}
	if _, err := (&Call{body: []byte(`{"Spec":{"linux":{"seccomp":{"defaultAction":"`)}).DecodeRun(nil); err == nil {
		t.Error("half a request was decoded")
	}
}
