package spec

import (
	"bufio"
	"errors"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/crisp-cri/crisp/internal/fault"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A User is the user of a container, in numbers.
type User struct {
	UID, GID uint32
	Groups   []uint32 // supplementary and the primary one, without duplicates, ascending
	Home     string   // from passwd; "/" if the user has no entry
}

// maxID is the largest ID: for the kernel (uid_t)-1 means "no change".
const maxID = math.MaxUint32 - 1

// maxGroups is the maximum number of supplementary groups of a process: NGROUPS_MAX
// of setgroups(2), since Linux 2.6.4.
const maxGroups = 65536

// maxMemberships is the maximum number of groups of the image that its user may be in. They are
// kept as long as the container, and returned with every status.
const maxMemberships = 4096

// ResolveUser returns the user that a container runs as. CRI's user takes precedence over the
// image's ("user", "uid", "user:group", …, as in the image's config). passwd and group are the
// files of the container's root file system; nil = no such file.
//
// CRI: "run_as_group should only be specified when run_as_user or run_as_username is specified;
// otherwise, the runtime MUST error." and "the user MUST exist in the container image". A number
// need not.
//
// A number is always that UID or GID, even if the image's files use it as a name: Kubernetes has
// checked the number (runAsNonRoot), and an image must not give it another meaning.
//
// The primary group is always among the supplementary ones: a file that denies access to a group
// must not become accessible by dropping the primary group.
func ResolveUser(sc *cri.LinuxContainerSecurityContext, imageUser string, passwd, group io.Reader) (User, error) {
	wanted, wantedGroup, err := userWanted(sc, imageUser)
	if err != nil {
		return User{}, err
	}
	policy := sc.GetSupplementalGroupsPolicy()
	if policy != cri.SupplementalGroupsPolicy_Merge && policy != cri.SupplementalGroupsPolicy_Strict {
		return User{}, fault.Invalid.Errorf("supplemental groups policy %d is not known", policy)
	}

	u := User{UID: wanted.id, Home: "/"}
	entry, found, err := findUser(passwd, wanted)
	switch {
	case err != nil:
		return User{}, err
	case found:
		u.UID, u.GID = entry.uid, entry.gid
		if strings.HasPrefix(entry.home, "/") {
			u.Home = entry.home
		}
	case !wanted.numeric || (sc.GetRunAsUsername() != "" && sc.GetRunAsUser() == nil):
		return User{}, fault.Invalid.Errorf("user %q is not in the image's passwd file", wanted.name)
	}

	memberships := entry.name
	if policy == cri.SupplementalGroupsPolicy_Strict {
		memberships = ""
	}
	gid, member, err := findGroups(group, wantedGroup, memberships)
	if err != nil {
		return User{}, err
	}
	if wantedGroup != nil {
		u.GID = gid
	}
	u.Groups = append([]uint32{u.GID}, member...)
	for _, g := range sc.GetSupplementalGroups() {
		if g < 0 || g > maxID {
			return User{}, fault.Invalid.Errorf("supplemental group %d is out of range", g)
		}
		u.Groups = append(u.Groups, uint32(g))
	}
	slices.Sort(u.Groups)
	u.Groups = slices.Compact(u.Groups)
	if len(u.Groups) > maxGroups {
		return User{}, fault.Invalid.Errorf("the container would have %d supplementary groups, more than the %d of a process", len(u.Groups), maxGroups)
	}
	return u, nil
}

// An account is a requested user or group: a name, or a number, which is never looked up as a
// name.
type account struct {
	name    string // as requested
	id      uint32 // if numeric
	numeric bool
}

// userWanted returns the requested user and group; group nil = the user's own.
func userWanted(sc *cri.LinuxContainerSecurityContext, imageUser string) (user account, group *account, err error) {
	uid, gid := sc.GetRunAsUser(), sc.GetRunAsGroup()
	name, groupName := sc.GetRunAsUsername(), ""
	switch {
	case uid != nil || name != "":
	case gid != nil:
		return account{}, nil, fault.Invalid.Errorf("run_as_group %d is given without a user", gid.Value)
	default:
		if name, groupName, _ = strings.Cut(imageUser, ":"); name == "" {
			name = "0"
		}
	}
	if uid != nil {
		user, err = number("run_as_user", uid)
	} else {
		user, err = written("user", name)
	}
	if err != nil {
		return account{}, nil, err
	}
	switch {
	case gid != nil:
		g, err := number("run_as_group", gid)
		return user, &g, err
	case groupName != "":
		g, err := written("group", groupName)
		return user, &g, err
	}
	return user, nil, nil
}

func number(field string, v *cri.Int64Value) (account, error) {
	if v.Value < 0 || v.Value > maxID {
		return account{}, fault.Invalid.Errorf("%s %d is out of range", field, v.Value)
	}
	return account{name: strconv.FormatInt(v.Value, 10), id: uint32(v.Value), numeric: true}, nil
}

// written parses an account of an image's config. Whatever looks like a number is one, even out
// of range: a name that is a number must have no meaning.
func written(kind, s string) (account, error) {
	n, err := strconv.ParseInt(s, 10, 64)
	if errors.Is(err, strconv.ErrRange) || (err == nil && (n < 0 || n > maxID)) {
		return account{}, fault.Invalid.Errorf("%s %q is out of range", kind, s)
	}
	return account{name: s, id: uint32(n), numeric: err == nil}, nil
}

func parseID(s string) (uint32, bool) {
	n, err := strconv.ParseUint(s, 10, 32)
	return uint32(n), err == nil && n <= maxID
}

type passwdEntry struct {
	name     string
	uid, gid uint32
	home     string
}

// findUser finds the requested user in a passwd(5) file: the first entry with that name, or with
// that number.
func findUser(passwd io.Reader, wanted account) (e passwdEntry, found bool, err error) {
	err = eachLine(passwd, func(field []string) bool {
		if len(field) < 4 {
			return true
		}
		uid, ok1 := parseID(field[2])
		gid, ok2 := parseID(field[3])
		if !ok1 || !ok2 || !wanted.is(field[0], uid) {
			return true
		}
		e, found = passwdEntry{name: field[0], uid: uid, gid: gid}, true
		if len(field) > 5 {
			e.home = field[5]
		}
		return false
	})
	if err != nil {
		return passwdEntry{}, false, fault.Invalid.Errorf("passwd file of the image: %w", err)
	}
	return e, found, nil
}

// is reports whether an entry of an account file is the requested one.
func (a account) is(name string, id uint32) bool {
	if a.numeric {
		return id == a.id
	}
	return name == a.name
}

// findGroups finds in a group(5) file the requested group (a name, or a number, which need not
// be in it) and the groups that user, if not "", is a member of.
func findGroups(group io.Reader, wanted *account, user string) (gid uint32, member []uint32, err error) {
	found := wanted == nil || wanted.numeric
	if wanted != nil {
		gid = wanted.id
	}
	err = eachLine(group, func(field []string) bool {
		if len(field) < 3 {
			return true
		}
		id, ok := parseID(field[2])
		if !ok {
			return true
		}
		if !found && wanted.is(field[0], id) {
			gid, found = id, true
		}
		if user != "" && len(field) > 3 && slices.Contains(strings.Split(field[3], ","), user) {
			member = append(member, id)
		}
		return len(member) <= maxMemberships
	})
	switch {
	case err != nil:
		return 0, nil, fault.Invalid.Errorf("group file of the image: %w", err)
	case len(member) > maxMemberships:
		return 0, nil, fault.Invalid.Errorf("group file of the image: user %q is in more than %d groups", user, maxMemberships)
	case !found:
		return 0, nil, fault.Invalid.Errorf("group %q is not in the image's group file", wanted.name)
	}
	return gid, member, nil
}

// eachLine calls f with the fields of each line until f returns false. The files come from an
// image, so a line longer than 1 MiB is an error.
func eachLine(r io.Reader, f func(field []string) bool) error {
	if r == nil {
		return nil
	}
	sc := bufio.NewScanner(r)
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		line := strings.TrimSpace(sc.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		if !f(strings.SplitN(line, ":", 8)) { // passwd has seven
			return nil
		}
	}
	return sc.Err()
}
