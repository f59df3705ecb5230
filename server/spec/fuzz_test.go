package spec_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/rogpeppe/go-internal/txtar"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/server/spec"
	"github.com/crisp-cri/crisp/test/testheap"
)

// FuzzBuild converts an arbitrary container of any sandbox from any image: the request is invalid,
// or the specification has no capability that the host lacks, is the same when built again, can
// be encoded, and takes memory in proportion.
func FuzzBuild(f *testing.F) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) < 10 {
		f.Fatalf("%d cases in testdata, %v", len(files), err)
	}
	for _, file := range files {
		archive, err := txtar.ParseFile(file)
		if err != nil {
			f.Fatal(err)
		}
		var container, sandbox, image []byte
		for _, part := range archive.Files {
			switch part.Name {
			case "container.json":
				container = wire(f, part.Data, &cri.ContainerConfig{})
			case "sandbox.json":
				sandbox = wire(f, part.Data, &cri.PodSandboxConfig{})
			case "input.json":
				var in goldenInput
				if err := json.Unmarshal(part.Data, &in); err != nil {
					f.Fatal(err)
				}
				if image, err = json.Marshal(in.Image); err != nil {
					f.Fatal(err)
				}
			}
		}
		f.Add(container, sandbox, image, uint8(len(f.Name())))
		f.Add(container, sandbox, image, uint8(0xff))
	}
	f.Fuzz(func(t *testing.T, container, sandbox, image []byte, host uint8) {
		is := func(bit int) bool { return host&(1<<bit) != 0 }
		in := spec.Input{
			Container: &cri.ContainerConfig{}, Sandbox: &cri.PodSandboxConfig{}, Root: "/root", Hostname: "pod", CgroupsPath: "/crisp/p0/c0",
			User: spec.User{UID: 1, GID: 2, Groups: []uint32{2}, Home: "/"},
			Host: spec.Host{
				CgroupV2: is(0), SwapLimit: is(1), Hugetlb: is(2), RecursiveRO: is(3), Seccomp: is(4), AppArmor: is(5), AppArmorDefault: "crisp-default",
				Capabilities: []string{"CAP_CHOWN", "CAP_NET_RAW", "CAP_SYS_ADMIN"},
			},
		}
		if proto.Unmarshal(container, in.Container) != nil || proto.Unmarshal(sandbox, in.Sandbox) != nil {
			t.Skip("no message")
		}
		var config v1.ImageConfig
		if json.Unmarshal(image, &config) == nil {
			in.Image = config
		}
		for _, m := range in.Container.Mounts {
			in.Mounts = append(in.Mounts, spec.Mount{Mount: m, Source: m.HostPath, Shared: is(6), Slave: is(7)})
		}
		if kind, _, err := spec.SeccompOf(in.Container.GetLinux().GetSecurityContext()); err == nil && kind == cri.SecurityProfile_Localhost {
			in.SeccompProfile = image
		}
		begin := testheap.Allocated()
		got, err := spec.Build(in)
		testheap.Bound{Base: 256 << 10, PerByte: 200}.Check(t, "bytes allocated", testheap.Allocated()-begin, len(container)+len(sandbox)+len(image))
		if err != nil {
			if fault.KindOf(err) != fault.Invalid {
				t.Errorf("error is %v, of kind %v", err, fault.KindOf(err))
			}
			return
		}
		if again, err := spec.Build(in); err != nil || !reflect.DeepEqual(got, again) {
			t.Errorf("the same again is something else: %v", err)
		}
		if len(got.Process.Args) == 0 || !filepath.IsAbs(got.Process.Cwd) {
			t.Errorf("it runs %q in %q", got.Process.Args, got.Process.Cwd)
		}
		caps := got.Process.Capabilities
		for _, set := range [][]string{caps.Bounding, caps.Permitted, caps.Effective, caps.Inheritable, caps.Ambient} {
			for _, c := range set {
				if !slices.Contains(in.Host.Capabilities, c) {
					t.Errorf("it gets %s, which the host has not", c)
				}
			}
		}
		data, err := json.Marshal(got)
		var back specs.Spec
		if err != nil || json.Unmarshal(data, &back) != nil {
			t.Errorf("it cannot be written and read: %v", err)
		}
	})
}

// wire returns a message in protobuf's encoding.
func wire(f *testing.F, text []byte, m proto.Message) []byte {
	f.Helper()
	if err := protojson.Unmarshal(text, m); err != nil {
		f.Fatal(err)
	}
	data, err := proto.Marshal(m)
	if err != nil {
		f.Fatal(err)
	}
	return data
}

// FuzzResolveUser looks up users of images in the images' files, and compares with a
// plain implementation of the rules.
func FuzzResolveUser(f *testing.F) {
	for _, user := range []string{"", "web", "1000", "web:adm", "nobody", ":4", "1234:video", "-1", "4294967295", "99999999999999999999", "+7:0x1"} {
		f.Add(user, passwd, group)
	}
	f.Add("a:b", "a:x:1:1\na:x:2:2", "b:x:3\nc:x:4:b,a,")
	f.Fuzz(func(t *testing.T, user, passwd, group string) {
		got, err := spec.ResolveUser(nil, user, strings.NewReader(passwd), strings.NewReader(group))
		want, ok := plainUser(user, passwd, group)
		if err != nil && !errors.Is(err, fault.Invalid) {
			t.Errorf("error is %v, not of kind %v", err, fault.Invalid)
		}
		if (err == nil) != ok || ok && !reflect.DeepEqual(got, want) {
			t.Errorf("user %q: got %+v, %v; want %+v, %v", user, got, err, want, ok)
		}
	})
}

// plainUser returns what ResolveUser should, without regard for time or memory.
func plainUser(image, passwd, group string) (u spec.User, ok bool) {
	rows := func(text string, fields int) (rows [][]string) {
		for sc := bufio.NewScanner(strings.NewReader(text)); sc.Scan(); {
			line := strings.TrimSpace(sc.Text())
			row := append(strings.Split(line, ":"), make([]string, 8)...)
			if strings.Count(line, ":")+1 < fields || strings.HasPrefix(line, "#") {
				continue
			}
			if _, err := id(row[2]); err == nil {
				rows = append(rows, row)
			}
		}
		return rows
	}
	name, groupName, _ := strings.Cut(image, ":")
	if name == "" {
		name = "0"
	}
	named := func(what string, row []string) bool {
		if n, err := strconv.ParseInt(what, 10, 64); err == nil {
			have, _ := id(row[2])
			return int64(have) == n
		}
		return row[0] == what
	}
	number := func(what string) (n uint32, is, ok bool) {
		v, err := strconv.ParseInt(what, 10, 64)
		if errors.Is(err, strconv.ErrSyntax) {
			return 0, false, true
		}
		return uint32(v), true, err == nil && v >= 0 && v < 1<<32-1
	}
	u.Home = "/"
	uid, isNumber, ok := number(name)
	if !ok {
		return u, false
	}
	u.UID, ok = uid, isNumber
	login := ""
	for _, row := range rows(passwd, 4) {
		gid, err := id(row[3])
		if err != nil || !named(name, row) {
			continue
		}
		u.UID, _ = id(row[2])
		u.GID, login, ok = gid, row[0], true
		if strings.HasPrefix(row[5], "/") {
			u.Home = row[5]
		}
		break
	}
	if !ok {
		return u, false
	}
	groups := rows(group, 3)
	if groupName != "" {
		gid, isNumber, ok := number(groupName)
		at := slices.IndexFunc(groups, func(row []string) bool { return named(groupName, row) })
		switch {
		case !ok || !isNumber && at < 0:
			return u, false
		case isNumber:
			u.GID = gid
		default:
			u.GID, _ = id(groups[at][2])
		}
	}
	member := map[uint32]bool{u.GID: true}
	for _, row := range groups {
		if gid, _ := id(row[2]); login != "" && slices.Contains(strings.Split(row[3], ","), login) {
			member[gid] = true
		}
	}
	for gid := range member {
		u.Groups = append(u.Groups, gid)
	}
	slices.Sort(u.Groups)
	return u, true
}

func id(text string) (uint32, error) {
	n, err := strconv.ParseUint(text, 10, 32)
	if err == nil && n == 1<<32-1 {
		err = fmt.Errorf("%s is nobody's", text)
	}
	return uint32(n), err
}

// FuzzSeccomp reads any file as a seccomp profile.
func FuzzSeccomp(f *testing.F) {
	for _, text := range []string{
		`{"defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": 1, "archMap": [{"architecture": "SCMP_ARCH_X86_64", "subArchitectures": ["SCMP_ARCH_X86"]}],
		  "syscalls": [{"names": ["read", "write"], "action": "SCMP_ACT_ALLOW", "args": [{"index": 1, "value": 2, "valueTwo": 3, "op": "SCMP_CMP_MASKED_EQ"}],
		  "includes": {"caps": ["CAP_SYS_ADMIN"], "arches": ["amd64"], "minKernel": "4.8"}, "excludes": {"caps": ["CAP_CHOWN"]}}, {"name": "open", "action": "SCMP_ACT_KILL", "errnoRet": 7}]}`,
		`{"defaultAction": "SCMP_ACT_ALLOW", "architectures": ["SCMP_ARCH_X86_64"], "flags": ["SECCOMP_FILTER_FLAG_LOG"], "listenerPath": "/x", "syscalls": null}`,
		`{"defaultAction": "x", "syscalls": [{"names": ["a"], "name": "b"}, {}]}`, `[]`, `null`, ``, `{"defaultAction": "a", "syscalls": [null]}`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		profile, err := spec.ParseSeccomp(text, []string{"CAP_CHOWN"}, "amd64")
		if err != nil {
			if !errors.Is(err, fault.Invalid) {
				t.Errorf("error is %v, not of kind %v", err, fault.Invalid)
			}
			return
		}
		if profile.DefaultAction == "" {
			t.Errorf("a profile that says nothing is accepted: %+v", profile)
		}
	})
}
