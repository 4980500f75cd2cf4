// What the programs of Gitea, Grafana and Supabase share.
package main

import (
	"log"

	"gopkg.in/ini.v1"
)

// Ends the program if there is an error.
func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// A section of a file, in which no setting may have another name than these.
func section(file, name string, known ...string) *ini.Section {
	settings, err := ini.Load(file)
	check(err)
	for _, other := range settings.Sections() {
		if other.Name() != name && len(other.Keys()) > 0 {
			log.Fatalf("settings in the section %q", other.Name())
		}
	}
	isKnown := map[string]bool{}
	for _, key := range known {
		isKnown[key] = true
	}
	for _, key := range settings.Section(name).KeyStrings() {
		if !isKnown[key] {
			log.Fatalf("unknown setting %q", key)
		}
	}
	return settings.Section(name)
}
