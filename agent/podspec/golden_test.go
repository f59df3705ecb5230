package podspec

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/crisp-cri/crisp/agent/manifest"
	"github.com/crisp-cri/crisp/test/golden"
	"github.com/rogpeppe/go-internal/txtar"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"sigs.k8s.io/yaml"
)

// A golden case is a txtar with the manifest pod.yaml and with input.yaml, which has what
// differs from the usual input. Its results are sandbox.yaml, warnings about DNS, the hosts
// file, and container-NAME.yaml or an error in its place.
type goldenInput struct {
	*Input
	Hosts      string // of the node
	ConfigMaps map[string]*v1.ConfigMap
	Secrets    map[string]*v1.Secret
	Files      map[string]string // of variables, by VOLUME/PATH
	Sources    map[string]Source // by volume; else its name, below /volumes
	Container  Container         // what is not of a container's spec; the same for each
}

// TestGolden pins the translation: a change shows every pod whose translation changes. The comment
// at the top of each case describes it.
func TestGolden(t *testing.T) {
	golden.Cases(t, func(t *testing.T, archive *txtar.Archive) *txtar.Archive {
		given := slices.DeleteFunc(slices.Clone(archive.Files), func(f txtar.File) bool { return f.Name != "pod.yaml" && f.Name != "input.yaml" })
		return &txtar.Archive{Comment: archive.Comment, Files: append(given, translate(t, given)...)}
	})
}

// translate returns the results of a case.
func translate(t *testing.T, given []txtar.File) []txtar.File {
	in := readCase(t, given)
	var out []txtar.File
	add := func(name string, data string) { out = append(out, txtar.File{Name: name, Data: []byte(data)}) }
	sandbox, warnings, err := in.Sandbox(0)
	if err != nil {
		add("error", err.Error()+"\n")
		return out
	}
	add("sandbox.yaml", text(t, sandbox))
	if len(warnings) > 0 {
		add("warnings", strings.Join(warnings, "\n")+"\n")
	}
	hosts := in.Input.Hosts([]byte(in.Hosts))
	add("hosts", hosts)
	for _, spec := range slices.Concat(in.Pod.Spec.InitContainers, in.Pod.Spec.Containers) {
		if config, err := in.container(spec, hosts != ""); err != nil {
			add("error-"+spec.Name, err.Error()+"\n")
		} else {
			add("container-"+spec.Name+".yaml", text(t, config))
		}
	}
	return out
}

// container does what the driver of a runtime does for one container.
func (in *goldenInput) container(spec v1.Container, hosts bool) (_ *cri.ContainerConfig, err error) {
	c := in.Container
	c.Spec = &spec
	refs := References{ConfigMaps: in.ConfigMaps, Secrets: in.Secrets, Files: map[FileRef]EnvFile{}}
	for name, data := range in.Files {
		volume, path, _ := strings.Cut(name, "/")
		refs.Files[FileRef{volume, path}] = EnvFile{Data: []byte(data)}
	}
	if c.Env, err = in.Environment(c.Spec, refs); err != nil {
		return nil, err
	}
	for _, m := range c.Spec.VolumeMounts {
		path, err := SubPath(&m, c.Env)
		if err != nil {
			return nil, err
		}
		source, ok := in.Sources[m.Name]
		if !ok {
			source.Path = filepath.Join("/volumes", m.Name, path)
		}
		c.Sources = append(c.Sources, source)
	}
	if hosts {
		c.HostsFile = in.Dir + "/etc-hosts"
	}
	if _, follows := in.ResolvConf(); follows {
		c.ResolvFile = in.Dir + "/resolv.conf"
	}
	c.MessageFile = in.Dir + "/containers/" + spec.Name + "/00000001"
	return in.Input.Container(&c)
}

func readCase(t *testing.T, given []txtar.File) *goldenInput {
	t.Helper()
	in := &goldenInput{
		Input: &Input{
			Node: Node{
				Agent: "0123456789ab", SeccompDir: "/agent/seccomp", ClusterDomain: "cluster.local", IPs: []string{"192.0.2.1"},
				Kernel: Kernel{Memory: 16 << 30, Unified: true, Swap: true, HugePages: []string{"2MB"}},
			},
			UserNamespace: &cri.UserNamespace{Mode: cri.NamespaceMode_NODE},
			DNS:           NodeDNS{Path: "/etc/resolv.conf", Own: &cri.DNSConfig{Servers: []string{"192.0.2.53"}, Searches: []string{"a.example"}, Options: []string{"rotate"}}},
			IPs:           []string{"10.0.0.2", "fd00::2"},
		},
		Container: Container{ImageRef: "sha256:1", Image: &cri.Image{Id: "sha256:1", Uid: &cri.Int64Value{Value: 0}}, Backoff: 10 * time.Second},
	}
	for _, f := range given {
		if f.Name == "input.yaml" {
			if err := yaml.UnmarshalStrict(f.Data, in); err != nil {
				t.Fatal(err)
			}
		}
	}
	// The UID follows from the manifest, which may be changed here.
	const uid = "11111111-2222-3333-4444-555555555555"
	objects, _, err := manifest.Read("web.yaml", given[0].Data, manifest.Options{NodeName: "n1"})
	if err != nil {
		t.Fatal(err)
	}
	in.Pod = objects[0].(*v1.Pod)
	in.Pod.UID = uid
	in.Dir, in.LogDir = "/agent/pods/"+uid, "/agent/logs/"+in.Pod.Namespace+"_"+in.Pod.Name+"_"+uid
	return in
}

// text returns a message as YAML, with the values of variables as they are and the paths that
// containers do not see in one line.
func text(t *testing.T, m proto.Message) string {
	t.Helper()
	data, err := protojson.Marshal(m)
	var tree map[string]any
	err = errors.Join(err, json.Unmarshal(data, &tree))
	if linux, ok := tree["linux"].(map[string]any); ok {
		security, _ := linux["securityContext"].(map[string]any)
		for _, name := range []string{"maskedPaths", "readonlyPaths"} {
			if paths, ok := security[name].([]any); ok {
				security[name] = strings.Trim(fmt.Sprint(paths), "[]")
			}
		}
	}
	for _, kv := range list(tree["envs"]) {
		value, _ := kv["value"].(string) // none is an empty one
		plain, decodeErr := base64.StdEncoding.DecodeString(value)
		kv["value"], err = string(plain), errors.Join(err, decodeErr)
	}
	out, yamlErr := yaml.Marshal(tree)
	if err = errors.Join(err, yamlErr); err != nil {
		t.Fatal(err)
	}
	return string(out)
}

func list(of any) []map[string]any {
	var maps []map[string]any
	entries, _ := of.([]any)
	for _, e := range entries {
		maps = append(maps, e.(map[string]any))
	}
	return maps
}
