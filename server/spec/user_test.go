package spec_test

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/server/spec"
)

const (
	passwd = `# comment
root:x:0:0:root:/root:/bin/sh
broken
web:x:1000:100:Web:/home/web:/bin/sh
second:x:1000:101::/home/second:
1234:x:77:78::/numeric:
nohome:x:5:5:::
99999999999999999999:x:0:0::/:
-5:x:0:0::/:
`
	group = `root:x:0:
users:x:100:
adm:x:4:web,nohome
video:x:44:web
1000:x:9:
4294967296:x:0:
bad:x:notanumber:web
`
)

// The user of a container decides what it may read: each rule of CRI, and each odd line that occurs
// in images.
func TestResolveUser(t *testing.T) {
	id := func(n int64) *cri.Int64Value { return &cri.Int64Value{Value: n} }
	for _, tt := range []struct {
		name  string
		sc    *cri.LinuxContainerSecurityContext
		image string
		want  spec.User
		err   string
	}{
		{name: "nothing", want: spec.User{Groups: []uint32{0}, Home: "/root"}},
		{name: "image name", image: "web", want: spec.User{UID: 1000, GID: 100, Groups: []uint32{4, 44, 100}, Home: "/home/web"}},
		{name: "image number", image: "1000", want: spec.User{UID: 1000, GID: 100, Groups: []uint32{4, 44, 100}, Home: "/home/web"}},
		{name: "image number and group name", image: "1000:adm", want: spec.User{UID: 1000, GID: 4, Groups: []uint32{4, 44}, Home: "/home/web"}},
		{name: "image unknown number", image: "4242:17", want: spec.User{UID: 4242, GID: 17, Groups: []uint32{17}, Home: "/"}},
		{name: "image group only", image: ":users", want: spec.User{GID: 100, Groups: []uint32{100}, Home: "/root"}},
		{name: "a number is not a name", image: "1234", want: spec.User{UID: 1234, Groups: []uint32{0}, Home: "/"}},
		{name: "a group number is not a name", image: "web:1000", want: spec.User{UID: 1000, GID: 1000, Groups: []uint32{4, 44, 1000}, Home: "/home/web"}},
		{name: "a number with a sign", image: "+1234:+1000", want: spec.User{UID: 1234, GID: 1000, Groups: []uint32{1000}, Home: "/"}},
		{name: "no home", image: "nohome", want: spec.User{UID: 5, GID: 5, Groups: []uint32{4, 5}, Home: "/"}},
		{name: "image unknown name", image: "nobody", err: `user "nobody" is not in the image's passwd file`},
		{name: "image unknown group", image: "web:nobody", err: `group "nobody" is not in the image's group file`},
		{name: "no change, says the kernel", image: "4294967295", err: `user "4294967295" is out of range`},
		{name: "too large, and a name in passwd", image: "99999999999999999999", err: `user "99999999999999999999" is out of range`},
		{name: "negative in the image, and a name in passwd", image: "-5", err: `user "-5" is out of range`},
		{name: "group too large, and a name in group", image: "web:4294967296", err: `group "4294967296" is out of range`},

		{name: "CRI wins, image's group is forgotten", image: "web:adm", sc: &cri.LinuxContainerSecurityContext{RunAsUser: id(4242)},
			want: spec.User{UID: 4242, Groups: []uint32{0}, Home: "/"}},
		{name: "CRI user 0 wins too", image: "web", sc: &cri.LinuxContainerSecurityContext{RunAsUser: id(0)}, want: spec.User{Groups: []uint32{0}, Home: "/root"}},
		{name: "CRI name", sc: &cri.LinuxContainerSecurityContext{RunAsUsername: "web", RunAsGroup: id(7)},
			want: spec.User{UID: 1000, GID: 7, Groups: []uint32{4, 7, 44}, Home: "/home/web"}},
		{name: "CRI name must be there, numeric or not", sc: &cri.LinuxContainerSecurityContext{RunAsUsername: "4242"}, err: "is not in the image's passwd file"},
		{name: "CRI name out of range", sc: &cri.LinuxContainerSecurityContext{RunAsUsername: "99999999999999999999"}, err: `user "99999999999999999999" is out of range`},
		{name: "CRI numbers are not names", sc: &cri.LinuxContainerSecurityContext{RunAsUser: id(1234), RunAsGroup: id(1000)},
			want: spec.User{UID: 1234, GID: 1000, Groups: []uint32{1000}, Home: "/"}},
		{name: "group without user", image: "web", sc: &cri.LinuxContainerSecurityContext{RunAsGroup: id(7)}, err: "run_as_group 7 is given without a user"},
		{name: "negative", sc: &cri.LinuxContainerSecurityContext{RunAsUser: id(-1)}, err: "run_as_user -1 is out of range"},
		{name: "negative group", sc: &cri.LinuxContainerSecurityContext{RunAsUser: id(1), RunAsGroup: id(1 << 32)}, err: "run_as_group 4294967296 is out of range"},
		{name: "merge", image: "web", sc: &cri.LinuxContainerSecurityContext{SupplementalGroups: []int64{44, 1234}},
			want: spec.User{UID: 1000, GID: 100, Groups: []uint32{4, 44, 100, 1234}, Home: "/home/web"}},
		{name: "strict", image: "web", sc: &cri.LinuxContainerSecurityContext{SupplementalGroups: []int64{1234}, SupplementalGroupsPolicy: cri.SupplementalGroupsPolicy_Strict},
			want: spec.User{UID: 1000, GID: 100, Groups: []uint32{100, 1234}, Home: "/home/web"}},
		{name: "unknown policy", sc: &cri.LinuxContainerSecurityContext{SupplementalGroupsPolicy: 9}, err: "supplemental groups policy 9 is not known"},
		{name: "bad group", sc: &cri.LinuxContainerSecurityContext{SupplementalGroups: []int64{-4}}, err: "supplemental group -4 is out of range"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := spec.ResolveUser(tt.sc, tt.image, strings.NewReader(passwd), strings.NewReader(group))
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) || !errors.Is(err, fault.Invalid) {
					t.Fatalf("got %v, %v, want Invalid %q", got, err, tt.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// An image without passwd runs as a number, and only as that.
func TestResolveUserWithoutFiles(t *testing.T) {
	got, err := spec.ResolveUser(nil, "12:34", nil, nil)
	if want := (spec.User{UID: 12, GID: 34, Groups: []uint32{34}, Home: "/"}); err != nil || !cmp.Equal(got, want) {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	if _, err := spec.ResolveUser(nil, "web", nil, nil); !errors.Is(err, fault.Invalid) {
		t.Errorf("a name without passwd: got %v, want Invalid", err)
	}
}

// The files are untrusted: an endless line is rejected, not read.
func TestResolveUserEndlessLine(t *testing.T) {
	endless := io.LimitReader(zeroes{}, 1<<40)
	if _, err := spec.ResolveUser(nil, "web", endless, nil); !errors.Is(err, fault.Invalid) {
		t.Errorf("got %v, want Invalid", err)
	}
}

// A container's groups are stored as long as the container and returned with every status: an image
// cannot make them megabytes, nor can a client request more than a process can have.
func TestResolveUserTooManyGroups(t *testing.T) {
	var all strings.Builder
	for gid := range 5000 {
		fmt.Fprintf(&all, "::%d:web\n", 100000+gid)
	}
	_, err := spec.ResolveUser(nil, "web", strings.NewReader(passwd), strings.NewReader(all.String()))
	if !errors.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "more than 4096 groups") {
		t.Errorf("an image with 5000 groups for its user: got %v, want Invalid", err)
	}
	strict := &cri.LinuxContainerSecurityContext{SupplementalGroupsPolicy: cri.SupplementalGroupsPolicy_Strict}
	if u, err := spec.ResolveUser(strict, "web", strings.NewReader(passwd), strings.NewReader(all.String())); err != nil || len(u.Groups) != 1 {
		t.Errorf("the same where the image's groups do not count: got %v, %v", u.Groups, err)
	}

	asked := new(cri.LinuxContainerSecurityContext)
	for gid := range int64(65536) {
		asked.SupplementalGroups = append(asked.SupplementalGroups, gid)
	}
	if u, err := spec.ResolveUser(asked, "0", nil, nil); err != nil || len(u.Groups) != 65536 {
		t.Errorf("as many groups as a process can have: %d groups, %v", len(u.Groups), err)
	}
	asked.SupplementalGroups = append(asked.SupplementalGroups, 65536)
	if _, err := spec.ResolveUser(asked, "0", nil, nil); !errors.Is(err, fault.Invalid) {
		t.Errorf("one more: got %v, want Invalid", err)
	}
}

type zeroes struct{}

func (zeroes) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = '0'
	}
	return len(p), nil
}
