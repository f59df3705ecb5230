package spec

import (
	"bufio"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/crisp-cri/crisp/internal/fault"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A User is who a container runs as, in numbers.
type User struct {
	UID, GID uint32
	Groups   []uint32 // supplementary and the primary one, without duplicates, ascending
	Home     string   // from passwd; "/" if the user has no entry
}

// maxID is the largest ID that is one: the kernel keeps (uid_t)-1 for "no change".
const maxID = math.MaxUint32 - 1

// ResolveUser answers who a container runs as. The CRI's user wins over the
// image's ("user", "uid", "user:group", …, as in the image's config). passwd and
// group are the files of the container's root file system; nil = there is none.
//
// CRI: "run_as_group should only be specified when run_as_user or
// run_as_username is specified; otherwise, the runtime MUST error." and "the
// user MUST exist in the container image". A number need not.
//
// The primary group is always among the supplementary ones: a file that denies
// access to a group must not be opened by dropping the primary group.
func ResolveUser(sc *cri.LinuxContainerSecurityContext, imageUser string, passwd, group io.Reader) (User, error) {
	name, groupName, err := userWanted(sc, imageUser)
	if err != nil {
		return User{}, err
	}
	policy := sc.GetSupplementalGroupsPolicy()
	if policy != cri.SupplementalGroupsPolicy_Merge && policy != cri.SupplementalGroupsPolicy_Strict {
		return User{}, fault.Invalid.Errorf("supplemental groups policy %d is not known", policy)
	}

	u := User{Home: "/"}
	entry, found, err := findUser(passwd, name)
	switch {
	case err != nil:
		return User{}, err
	case found:
		u.UID, u.GID = entry.uid, entry.gid
		if strings.HasPrefix(entry.home, "/") {
			u.Home = entry.home
		}
	default:
		uid, ok := parseID(name)
		if !ok || (sc.GetRunAsUsername() != "" && sc.GetRunAsUser() == nil) {
			return User{}, fault.Invalid.Errorf("user %q is not in the image's passwd file", name)
		}
		u.UID = uid
	}

	gid, member, err := findGroups(group, groupName, entry.name)
	if err != nil {
		return User{}, err
	}
	if groupName != "" {
		u.GID = gid
	}
	u.Groups = []uint32{u.GID}
	if policy == cri.SupplementalGroupsPolicy_Merge {
		u.Groups = append(u.Groups, member...)
	}
	for _, g := range sc.GetSupplementalGroups() {
		if g < 0 || g > maxID {
			return User{}, fault.Invalid.Errorf("supplemental group %d is out of range", g)
		}
		u.Groups = append(u.Groups, uint32(g))
	}
	slices.Sort(u.Groups)
	u.Groups = slices.Compact(u.Groups)
	return u, nil
}

// userWanted is the user and the group asked for, as names or numbers; group ""
// = the user's own.
func userWanted(sc *cri.LinuxContainerSecurityContext, imageUser string) (user, group string, err error) {
	uid, gid := sc.GetRunAsUser(), sc.GetRunAsGroup()
	switch {
	case uid != nil:
		if user, err = number("run_as_user", uid); err != nil {
			return "", "", err
		}
	case sc.GetRunAsUsername() != "":
		user = sc.GetRunAsUsername()
	case gid != nil:
		return "", "", fault.Invalid.Errorf("run_as_group %d is given without a user", gid.Value)
	default:
		user, group, _ = strings.Cut(imageUser, ":")
		if user == "" {
			user = "0"
		}
		return user, group, nil
	}
	if gid != nil {
		if group, err = number("run_as_group", gid); err != nil {
			return "", "", err
		}
	}
	return user, group, nil
}

func number(field string, v *cri.Int64Value) (string, error) {
	if v.Value < 0 || v.Value > maxID {
		return "", fault.Invalid.Errorf("%s %d is out of range", field, v.Value)
	}
	return strconv.FormatInt(v.Value, 10), nil
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

// findUser looks name up in a passwd(5) file: as a name, and if it is a number
// and no user has it for a name, as the first entry with that ID.
func findUser(passwd io.Reader, name string) (passwdEntry, bool, error) {
	id, numeric := parseID(name)
	var byID passwdEntry
	var found bool
	var exact *passwdEntry
	err := eachLine(passwd, func(field []string) bool {
		if len(field) < 4 {
			return true
		}
		uid, ok1 := parseID(field[2])
		gid, ok2 := parseID(field[3])
		if !ok1 || !ok2 {
			return true
		}
		e := passwdEntry{name: field[0], uid: uid, gid: gid}
		if len(field) > 5 {
			e.home = field[5]
		}
		if e.name == name {
			exact = &e
			return false
		}
		if numeric && uid == id && !found {
			byID, found = e, true
		}
		return true
	})
	if err != nil {
		return passwdEntry{}, false, fault.Invalid.Errorf("passwd file of the image: %w", err)
	}
	if exact != nil {
		return *exact, true, nil
	}
	return byID, found, nil
}

// findGroups looks in a group(5) file for the group wanted (a name, or a number
// that need not be there) and for the groups that user is a member of.
func findGroups(group io.Reader, wanted, user string) (gid uint32, member []uint32, err error) {
	found := wanted == ""
	err = eachLine(group, func(field []string) bool {
		if len(field) < 3 {
			return true
		}
		id, ok := parseID(field[2])
		if !ok {
			return true
		}
		if !found && field[0] == wanted {
			gid, found = id, true
		}
		if user != "" && len(field) > 3 && slices.Contains(strings.Split(field[3], ","), user) {
			member = append(member, id)
		}
		return true
	})
	if err != nil {
		return 0, nil, fault.Invalid.Errorf("group file of the image: %w", err)
	}
	if !found {
		if gid, found = parseID(wanted); !found {
			return 0, nil, fault.Invalid.Errorf("group %q is not in the image's group file", wanted)
		}
	}
	return gid, member, nil
}

// eachLine calls f with the fields of each line until f returns false. The files
// come from an image: a line longer than 1 MiB is an error, not memory.
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
		if !f(strings.Split(line, ":")) {
			return nil
		}
	}
	return sc.Err()
}
