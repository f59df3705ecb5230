package manifest

import (
	"fmt"
	"strings"
)

// Reference returns the table of fields as Markdown, for docs/fields.md.
func Reference() string {
	var b strings.Builder
	b.WriteString("| field | what becomes of it |\n|---|---|\n")
	heads := []string{everyKind}
	for _, k := range kinds {
		heads = append(heads, k.name)
	}
	words := map[support]string{honoured: "honoured", ignored: "ignored", rejected: "**rejected**"}
	for _, head := range heads {
		fmt.Fprintf(&b, "| **%s** | |\n", head)
		for _, path := range Paths(head) {
			rule := fields[head].rules[path]
			text := words[rule.support]
			if rule.text != "" {
				text += ": " + rule.text
			}
			fmt.Fprintf(&b, "| `%s` | %s |\n", path, text)
		}
	}
	fmt.Fprintf(&b, "| anything else that Kubernetes has | **rejected**: %s |\n", notYet)
	return b.String()
}
