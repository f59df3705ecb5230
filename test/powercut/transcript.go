package powercut

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/crisp-cri/crisp/test/filetrace"
)

// A script is the readable form of a record.
type script struct {
	lines []string // by operation
	text  string
}

var (
	temporary  = regexp.MustCompile(`\.\d+\.tmp\b`)
	unfinished = regexp.MustCompile(`\b(layer-)\d+|\b(gone-)[A-Z2-7]{26}`)
	longID     = regexp.MustCompile(`\b[0-9a-f]{64}\b`)
	uuid       = regexp.MustCompile(`\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b`)
)

// transcript formats the operations, with names in place of what is random.
func (c Case) transcript(ops []filetrace.Op) script {
	ids := map[string]string{}
	name := func(path string) string {
		if c.Rename != nil {
			path = c.Rename(path)
		}
		path = temporary.ReplaceAllString(path, ".*.tmp")
		path = unfinished.ReplaceAllString(path, "$1$2*")
		number := func(id string) string {
			if ids[id] == "" {
				ids[id] = fmt.Sprintf("<%d>", len(ids)+1)
			}
			return ids[id]
		}
		path = longID.ReplaceAllStringFunc(path, number)
		return uuid.ReplaceAllStringFunc(path, number)
	}
	s := script{lines: make([]string, len(ops))}
	order := c.order(ops)
	for _, i := range order {
		s.lines[i] = line(ops[i], name)
	}
	var text strings.Builder
	last := ""
	for _, i := range order {
		if l := s.lines[i]; l != last || ops[i].Kind != filetrace.Write {
			fmt.Fprintln(&text, l)
			last = l
		}
	}
	s.text = text.String()
	return s
}

// order puts concurrent lanes one after the other.
func (c Case) order(ops []filetrace.Op) []int {
	order := make([]int, len(ops))
	lanes := make([]string, len(ops))
	for i, op := range ops {
		order[i] = i
		if c.Lane != nil && op.Kind != filetrace.Marked {
			lanes[i] = c.Lane(op)
		}
	}
	for i := 0; i < len(ops); i++ {
		end := i
		for end < len(ops) && lanes[end] != "" {
			end++
		}
		slices.SortStableFunc(order[i:end], func(a, b int) int { return strings.Compare(lanes[a], lanes[b]) })
		i = end
	}
	return order
}

// RecordLanes is a Lane for records of package checkpoint below dir, "" or a path that
// ends with a slash: the name of a new record's directory is synced while the record is
// written, and its own name while its content is.
func RecordLanes(dir string, kinds ...string) func(op filetrace.Op) string {
	return func(op filetrace.Op) string {
		if op.Kind == filetrace.Mkdir || op.Kind == filetrace.Remove {
			return ""
		}
		for _, kind := range kinds {
			switch path := filepath.Clean(dir + kind); {
			case op.Kind == filetrace.Fsync && (op.Path == path || op.Path == filepath.Dir(path)):
				return "names"
			case op.Kind == filetrace.Fsync && strings.HasPrefix(op.Path, path+"/") && filepath.Base(op.Path) == "record.json":
				return "record's content"
			case strings.HasPrefix(op.Path, path+"/"):
				return "record"
			}
		}
		return ""
	}
}

func line(op filetrace.Op, name func(string) string) string {
	switch op.Kind {
	case filetrace.Marked:
		return "-- " + name(op.Text)
	case filetrace.Rename, filetrace.Swap, filetrace.Link:
		return fmt.Sprintf("%-7s %s -> %s", op.Kind, name(op.Path), name(op.To))
	case filetrace.Symlink:
		return fmt.Sprintf("%-7s %s -> %s", op.Kind, name(op.Path), op.File.Target)
	case filetrace.Create, filetrace.Mkdir:
		return fmt.Sprintf("%-7s %s %04o", op.Kind, name(op.Path), op.File.Mode&0o7777)
	case filetrace.Meta:
		return fmt.Sprintf("%-7s %s", attribute(op.Call), name(op.Path))
	case filetrace.Fsync:
		if op.File.Mode&fileType == dirType && op.Path != "." {
			return fmt.Sprintf("%-7s %s/", op.Kind, name(op.Path))
		}
	case filetrace.Syncfs:
		return "syncfs"
	}
	return fmt.Sprintf("%-7s %s", op.Kind, name(op.Path))
}

// attribute returns what a call changes, for all variants of it.
func attribute(call string) string {
	for _, what := range []string{"chmod", "chown", "utime", "xattr"} {
		if strings.Contains(call, what) {
			return what
		}
	}
	return call
}
