package noleaks

import (
	"bufio"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/crisp-cri/crisp/internal/netlist"
	"github.com/crisp-cri/crisp/internal/procstat"
)

// TakeAll lists all present objects, for a test that is alone in its namespaces
// (test/testns), where no mark has to identify the owner. In addition to Take it
// lists every cgroup, addresses and routes, the rules of nftables, every process but PID
// 1 and the caller, zombies, listening sockets, and the files below /run and $TMPDIR.
func TakeAll() (Snapshot, error) {
	s := Snapshot{}
	for _, take := range []func(Snapshot) error{mounts, allCgroups, addresses, ruleset, allProcesses, sockets, files} {
		if err := take(s); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// Since returns what was not in the snapshot before, sorted.
func (s Snapshot) Since(before Snapshot) []string {
	var lines []string
	for line := range s {
		if !before[line] {
			lines = append(lines, line)
		}
	}
	slices.Sort(lines)
	return lines
}

func allCgroups(s Snapshot) error { return cgroupsNamed(s, "") }

func addresses(s Snapshot) error {
	links, err := netlist.Whole(netlink.LinkList)
	if err != nil {
		return fmt.Errorf("list links: %w", err)
	}
	names := map[int]string{}
	for _, l := range links {
		names[l.Attrs().Index] = l.Attrs().Name
		s["link "+l.Attrs().Name] = true
		addrs, err := netlist.Whole(func() ([]netlink.Addr, error) { return netlink.AddrList(l, netlink.FAMILY_ALL) })
		if err != nil {
			continue // the link is gone
		}
		for _, a := range addrs {
			s[fmt.Sprintf("address %s of %s", a.IPNet, l.Attrs().Name)] = true
		}
	}
	routes, err := netlist.Routes(netlink.FAMILY_ALL)
	if err != nil {
		return fmt.Errorf("list routes: %w", err)
	}
	for _, r := range routes {
		s[fmt.Sprintf("route to %s via %s dev %s", r.Dst, r.Gw, names[r.LinkIndex])] = true
	}
	return nil
}

// ruleset lists each table, chain, set, rule and element of nftables, with its place.
func ruleset(s Snapshot) error {
	text, err := nft("--stateless", "list", "ruleset")
	if err != nil {
		return err
	}
	var place []string
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		switch {
		case line == "":
		case strings.HasSuffix(line, "{") && !strings.Contains(line, "="):
			place = append(place, strings.TrimSpace(strings.TrimSuffix(line, "{")))
			s["nft "+strings.Join(place, ", ")] = true
		case line == "}" && len(place) > 0:
			place = place[:len(place)-1]
		default:
			s["nft "+strings.Join(place, ", ")+": "+line] = true
		}
	}
	return nil
}

func allProcesses(s Snapshot) error {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return err
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == 1 || pid == os.Getpid() {
			continue
		}
		stat, err := procstat.Read(pid)
		if err != nil {
			continue // gone
		}
		if stat.Ended() {
			s[fmt.Sprintf("zombie %d %s", pid, stat.Name)] = true
			continue
		}
		cmdline, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		words := strings.TrimSpace(strings.ReplaceAll(string(cmdline), "\x00", " "))
		s[fmt.Sprintf("process %d (%s) %s", pid, stat.Name, words)] = true
	}
	return nil
}

// sockets lists listening sockets: proc_net_unix(5) has a path, proc_net_tcp the state
// 0A.
func sockets(s Snapshot) error {
	f, err := os.Open("/proc/net/unix")
	if err != nil {
		return err
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) == 8 && fields[3] == "00010000" { // __SO_ACCEPTCON
			s["listening socket "+fields[7]] = true
		}
	}
	for _, family := range []string{"tcp", "tcp6"} {
		data, err := os.ReadFile("/proc/net/" + family)
		if err != nil {
			continue // no IPv6
		}
		for line := range strings.Lines(string(data)) {
			fields := strings.Fields(line)
			if len(fields) > 3 && fields[3] == "0A" {
				s["listening "+family+" "+fields[1]] = true
			}
		}
	}
	return nil
}

func files(s Snapshot) error {
	for _, dir := range []string{"/run", os.TempDir()} {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if path == "/run/mount" { // mount(8)'s own
				return filepath.SkipDir
			}
			if err == nil {
				s["file "+path] = true
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}
