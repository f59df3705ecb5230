package network

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types/create"

	"github.com/crisp-cri/crisp/internal/fault"
)

// FuzzResult reads any output of a plugin: the result is addresses for the pod, or an error.
func FuzzResult(f *testing.F) {
	for _, text := range []string{
		`{"cniVersion":"1.0.0","interfaces":[{"name":"br"},{"name":"eth0","sandbox":"/n"}],"ips":[{"address":"10.0.0.2/24","gateway":"10.0.0.1","interface":1},{"address":"10.0.0.9/24","interface":0}],"routes":[{"dst":"0.0.0.0/0"}],"dns":{}}`,
		`{"cniVersion":"1.1.0","ips":[{"address":"fd00::2/64"}]}`, `{"cniVersion":"0.2.0","ip4":{"ip":"10.0.0.2/24"},"ip6":null}`, `{"cniVersion":"0.4.0","ips":[{"version":"4","address":"10.0.0.2/24","interface":-7}]}`,
		`{"cniVersion":"1.0.0","ips":[null]}`, `{"cniVersion":"1.0.0","interfaces":[null],"ips":[{"address":"10.0.0.2/24","interface":0}]}`, `{"cniVersion":"1.0.0","ips":[{}]}`, `{"cniVersion":"0.4.0","interfaces":[null],"ips":[null],"routes":[null]}`,
		`{"cniVersion":"9.0.0"}`, `{}`, `null`, ``, `[]`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if refuseNull("p", text) != nil {
			return
		}
		parsed, err := create.CreateFromBytes(text)
		if err != nil {
			return
		}
		r, err := resultOf(parsed)
		if err != nil {
			return
		}
		if len(r.IPs) == 0 {
			t.Errorf("a pod without an address: %+v", r)
		}
		for _, ip := range r.IPs {
			if !ip.IsValid() || ip != ip.Unmap() {
				t.Errorf("address %v", ip)
			}
		}
	})
}

// FuzzConf reads any file of the CNI directory as a network: an accepted one has a name
// and plugins, and its bytes contain all of it, for DEL.
func FuzzConf(f *testing.F) {
	for _, text := range []string{
		`{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"bridge","ipam":{}},{"type":"portmap","capabilities":{"portMappings":true}}]}`, `{"cniVersion":"0.3.1","name":"n","type":"bridge"}`,
		`{"name":"n","plugins":[null]}`, `{"name":"n","plugins":[]}`, `{"name":"../n","plugins":[{"type":"a"}]}`, `{"name":"n","loadOnlyInlinedPlugins":false,"plugins":[{"type":"a"}]}`,
		`{"cniVersion":"1.1.0","cniVersions":["0.1.0",null],"name":"n","disableCheck":"true","disableGC":1,"plugins":[{"type":"a"}]}`, `null`, `[]`, ``, `{"name":7}`, `{"cniVersion":"1","name":"n","plugins":[{"type":"a"}]}`,
	} {
		f.Add([]byte(text))
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, text []byte) {
		for _, name := range []string{"n.conf", "n.conflist"} {
			path := filepath.Join(dir, name)
			if err := os.WriteFile(path, text, 0o600); err != nil {
				t.Fatal(err)
			}
			list, err := parse(path)
			if err != nil {
				continue
			}
			if list.Name == "" || len(list.Plugins) == 0 {
				t.Errorf("accepted a network %q of %d plugins", list.Name, len(list.Plugins))
			}
			again, err := libcni.NetworkConfFromBytes(list.Bytes)
			if err != nil || again.Name != list.Name || len(again.Plugins) != len(list.Plugins) {
				t.Errorf("DEL would read %+v (%v)", again, err)
			}
		}
		subnetsOf(text)
	})
}

// FuzzAttachment starts crispd with any content in the file of an attachment. A file of a later
// version is not changed.
func FuzzAttachment(f *testing.F) {
	for _, text := range []string{
		`{"version":1,"id":"a","config":{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"some"}]},"netns":"/n","ifName":"eth0","args":[["K8S_POD_NAME","x"]],"capabilities":{"portMappings":[{"hostPort":1}]}}`,
		`{"version":2,"id":"a"}`, `{"version":1,"id":"b"}`, `{"version":1,"id":"a"}`, `{"version":-1,"id":"a"}`, `{"version":1e9}`, `null`, `[]`, ``, `{"version":1,"id":"a","config":null,"capabilities":{"a":null}}`,
	} {
		f.Add([]byte(text))
	}
	n, o := fresh(f, false)
	f.Fuzz(func(t *testing.T, text []byte) {
		path := writeConf(t, filepath.Join(o.CacheDir, attachedDir), "a.json", string(text))
		a, err := n.loadAttachment("a")
		if err == nil {
			if a.runtime().ContainerID != "a" || len(a.list.Plugins) == 0 {
				t.Errorf("the attachment is for %q and %d plugins", a.runtime().ContainerID, len(a.list.Plugins))
			}
		}
		if newer := n.refuseNewer(); (newer != nil) != errors.Is(err, fault.WrongState) {
			t.Errorf("crispd starts with %v, and reads it with %v", newer, err)
		}
		if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, text) {
			t.Errorf("the file has become %q (%v)", got, err)
		}
	})
}
