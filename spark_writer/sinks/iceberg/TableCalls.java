package cutline;

import java.io.IOException;
import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.LinkedHashSet;
import java.util.LinkedList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.iceberg.ContentFile;
import org.apache.iceberg.ContentFileParser;
import org.apache.iceberg.DataFile;
import org.apache.iceberg.DeleteFile;
import org.apache.iceberg.FileContent;
import org.apache.iceberg.HasTableOperations;
import org.apache.iceberg.ManifestFile;
import org.apache.iceberg.PartitionSpec;
import org.apache.iceberg.Schema;
import org.apache.iceberg.Snapshot;
import org.apache.iceberg.SnapshotChanges;
import org.apache.iceberg.SnapshotRef;
import org.apache.iceberg.SnapshotUpdate;
import org.apache.iceberg.SortOrder;
import org.apache.iceberg.Table;
import org.apache.iceberg.TableMetadata;
import org.apache.iceberg.TableOperations;
import org.apache.iceberg.Transaction;
import org.apache.iceberg.catalog.Catalog;
import org.apache.iceberg.catalog.Namespace;
import org.apache.iceberg.catalog.TableIdentifier;
import org.apache.iceberg.catalog.ViewCatalog;
import org.apache.iceberg.io.FileIO;
import org.apache.iceberg.shaded.com.fasterxml.jackson.databind.JsonNode;
import org.apache.iceberg.shaded.com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.iceberg.shaded.com.fasterxml.jackson.databind.node.ArrayNode;
import org.apache.iceberg.shaded.com.fasterxml.jackson.databind.node.ObjectNode;
import org.apache.iceberg.util.JsonUtil;

/**
 * One lake table, for calls from Python: each does what would take a hundred calls of Iceberg's own methods, and each
 * call costs both processes more CPU than the work behind it. Decisions are Python's (table.py, lake.py); texts between
 * the two are JSON.
 *
 * <p>One thread at a time. `known` is the metadata whose facts Python has read last. Each commit is made from it, so a
 * commit that came in between refuses ours, as Iceberg compares the object.
 */
public class TableCalls {
    private static final ObjectMapper JSON = JsonUtil.mapper();

    private final Table table;
    private final TableOperations operations;
    private TableMetadata known;
    private int reading;
    private Transaction transaction;
    private TableOperations inner;
    private boolean putsBack;
    private int sortOrder;
    private TableMetadata end;
    private Snapshot made;

    public TableCalls(Table table) {
        this.table = table;
        this.operations = ((HasTableOperations) table).operations();
    }

    // Facts

    public Table table() {
        return table;
    }

    /** The metadata that a reading returned the facts of; an error if another one came since. */
    public TableMetadata metadata(int number) {
        if (number != reading) {
            throw new IllegalStateException("the metadata of this table was read again meanwhile");
        }
        return known;
    }

    /** Ask the catalogue, and return the facts of the table's metadata. */
    public String refresh() throws IOException {
        table.refresh();
        return read();
    }

    /** Return the facts of the table's metadata; after a commit the catalogue is asked. */
    public String read() throws IOException {
        known = operations.current();
        reading++;
        ObjectNode facts = JSON.createObjectNode();
        facts.put("reading", reading);
        facts.put("uuid", known.uuid());
        facts.put("location", known.location());
        facts.put("file", known.metadataFileLocation());
        facts.put("format-version", known.formatVersion());
        facts.put("last-column-id", known.lastColumnId());
        facts.put("schema-id", known.currentSchemaId());
        facts.put("spec-id", known.defaultSpecId());
        facts.put("sort-order-id", known.defaultSortOrderId());
        facts.put("specs", known.specs().size());
        facts.put("previous-files", known.previousFiles().size());
        ObjectNode properties = facts.putObject("properties");
        for (Iterator each = known.properties().entrySet().iterator(); each.hasNext(); ) {
            Map.Entry property = (Map.Entry) each.next();
            properties.put((String) property.getKey(), (String) property.getValue());
        }
        ObjectNode refs = facts.putObject("refs");
        ObjectNode heads = facts.putObject("heads");
        for (Iterator each = known.refs().entrySet().iterator(); each.hasNext(); ) {
            Map.Entry named = (Map.Entry) each.next();
            SnapshotRef ref = (SnapshotRef) named.getValue();
            ArrayNode described = refs.putArray((String) named.getKey());
            described.add(ref.snapshotId());
            described.add(ref.isBranch());
            Snapshot head = ref.isBranch() ? known.snapshot(ref.snapshotId()) : null;
            if (head != null) {
                describe(head, heads.putObject(String.valueOf(ref.snapshotId())));
            }
        }
        return JSON.writeValueAsString(facts);
    }

    private static void describe(Snapshot snapshot, ObjectNode facts) {
        facts.put("parent-id", snapshot.parentId());
        facts.put("schema-id", snapshot.schemaId());
        facts.put("timestamp-ms", snapshot.timestampMillis());
        facts.put("operation", snapshot.operation());
        ObjectNode summary = facts.putObject("summary");
        for (Iterator each = snapshot.summary().entrySet().iterator(); each.hasNext(); ) {
            Map.Entry entry = (Map.Entry) each.next();
            summary.put((String) entry.getKey(), (String) entry.getValue());
        }
    }

    // Files

    /** The full path for a new data file of this name. */
    public String newFile(String name) {
        return table.locationProvider().newDataLocation(name);
    }

    /**
     * A DataFile or DeleteFile by its description in Iceberg's JSON. `spec`: its partition spec, with the columns of the
     * file's own schema, which the table may not have yet; null: the table's spec of that id, which has no fields.
     */
    public ContentFile file(String description, PartitionSpec spec) throws IOException {
        JsonNode described = JSON.readTree(description);
        return ContentFileParser.fromJson(
                described, spec == null ? known.spec(described.get("spec-id").asInt()) : spec);
    }

    // Commits

    /** Change the metadata as `changes` says, in one swap; false if nothing would change. `order`: null, or a sort order. */
    public boolean swap(String changes, SortOrder order) throws IOException {
        TableMetadata.Builder builder = TableMetadata.buildFrom(known);
        apply(JSON.readTree(changes), builder, null, order);
        TableMetadata next = builder.build();
        if (next.changes().isEmpty()) {
            return false;
        }
        operations.commit(known, next);
        return true;
    }

    /**
     * Begin the commit of a snapshot: a transaction with `changes`, the columns and the sort order (null: as it is).
     * `ours`: the table's sort order is not another user's. `shown`: readers have seen the table, so `prepare` makes
     * its columns, spec and order again what they are now. `orderProperty`: see table.py.
     */
    public Transaction begin(
            String changes, Schema schema, SortOrder order, boolean ours, boolean shown, String orderProperty)
            throws IOException {
        transaction = table.newTransaction();
        inner = ((HasTableOperations) transaction.table()).operations();
        TableMetadata.Builder builder = TableMetadata.buildFrom(known);
        apply(JSON.readTree(changes), builder, schema, order);
        TableMetadata prepared = builder.build();
        putsBack = shown;
        sortOrder = ours ? prepared.defaultSortOrderId() : 0;
        String chosen = String.valueOf(sortOrder);
        if (ours && !shown && !chosen.equals(known.property(orderProperty, "0"))) {
            Map noted = new HashMap();
            noted.put(orderProperty, chosen);
            prepared = TableMetadata.buildFrom(prepared).setProperties(noted).build();
        }
        if (!prepared.changes().isEmpty()) {
            inner.commit(inner.current(), prepared);
        }
        return transaction;
    }

    /** Make the snapshot of an update in the transaction that `begin` returned, with `summary`, on a branch. */
    public void prepare(SnapshotUpdate update, String branch, String summary, String orderProperty)
            throws IOException {
        update.toBranch(branch);
        JsonNode properties = JSON.readTree(summary);
        for (Iterator names = properties.fieldNames(); names.hasNext(); ) {
            String name = (String) names.next();
            update.set(name, properties.get(name).asText());
        }
        if (sortOrder != 0) {
            update.set(orderProperty, String.valueOf(sortOrder));
        }
        update.commit();
        end = inner.current();
        if (putsBack && !looksAs(end, known)) {
            TableMetadata.Builder builder = TableMetadata.buildFrom(end);
            builder.setDefaultPartitionSpec(known.defaultSpecId());
            builder.setCurrentSchema(known.currentSchemaId());
            builder.setDefaultSortOrder(known.defaultSortOrderId());
            end = builder.build();
        }
        made = end.snapshot(end.ref(branch).snapshotId());
    }

    /** Take a transaction that was made without `begin`, as it is, for `swapIn`. */
    public void take(Transaction other) {
        transaction = other;
        end = ((HasTableOperations) other.table()).operations().current();
        made = end.currentSnapshot();
    }

    /** Replace the metadata by what was prepared. */
    public void swapIn() {
        operations.commit(known, end);
    }

    /**
     * Delete the files that the transaction has dropped while it was prepared, which Iceberg shows to its own package
     * only; `refused`: and all that was written for its snapshot.
     */
    public void deleteDropped(boolean refused) throws Exception {
        Method dropped = Class.forName("org.apache.iceberg.BaseTransaction").getDeclaredMethod("deletedFiles", new Class[0]);
        dropped.setAccessible(true);
        FileIO io = table.io();
        Set paths = new LinkedHashSet((Set) dropped.invoke(transaction, new Object[0]));
        if (refused) {
            for (Iterator each = made.allManifests(io).iterator(); each.hasNext(); ) {
                ManifestFile manifest = (ManifestFile) each.next();
                if (manifest.snapshotId() != null && manifest.snapshotId().longValue() == made.snapshotId()) {
                    paths.add(manifest.path());
                }
            }
            paths.add(made.manifestListLocation());
        }
        for (Iterator each = paths.iterator(); each.hasNext(); ) {
            io.deleteFile((String) each.next());
        }
    }

    /** The snapshot that was made: its id, and by the path of each data file that it added what Iceberg gave to it. */
    public String made() throws IOException {
        ObjectNode facts = JSON.createObjectNode();
        facts.put("snapshot-id", made.snapshotId());
        facts.put("format-version", end.formatVersion());
        ObjectNode added = facts.putObject("added");
        if (made.summary().containsKey("added-data-files")) {
            SnapshotChanges changes = SnapshotChanges.builderFor(table).snapshot(made).build();
            for (Iterator each = changes.addedDataFiles().iterator(); each.hasNext(); ) {
                DataFile file = (DataFile) each.next();
                ArrayNode lineage = added.putArray(file.location());
                lineage.add(file.firstRowId());
                lineage.add(file.dataSequenceNumber());
            }
        }
        return JSON.writeValueAsString(facts);
    }

    // Differences

    /**
     * What the commits after snapshot `before`, up to `now`, did to rows, the oldest first, without those that only
     * rewrote files: the data files that each added, with their rows, those that it removed, and the deletions of rows of
     * a data file that it added and removed. null if `now` is not known to come from `before`.
     */
    public String steps(long before, long now) throws IOException {
        LinkedList steps = new LinkedList();
        for (Long at = Long.valueOf(now); at.longValue() != before; ) {
            Snapshot snapshot = known.snapshot(at.longValue());
            if (snapshot == null || snapshot.parentId() == null) {
                return null;
            }
            if (!"replace".equals(snapshot.operation())) {
                steps.addFirst(step(snapshot));
            }
            at = snapshot.parentId();
        }
        return JSON.writeValueAsString(steps);
    }

    private ObjectNode step(Snapshot snapshot) {
        SnapshotChanges changes = SnapshotChanges.builderFor(table).snapshot(snapshot).build();
        ObjectNode step = JSON.createObjectNode();
        ObjectNode added = step.putObject("added");
        for (Iterator each = changes.addedDataFiles().iterator(); each.hasNext(); ) {
            DataFile file = (DataFile) each.next();
            added.put(file.location(), file.recordCount());
        }
        step.put("removes", changes.removedDataFiles().iterator().hasNext());
        deletions(changes.addedDeleteFiles(), step.putArray("deletes"));
        deletions(changes.removedDeleteFiles(), step.putArray("deleted"));
        return step;
    }

    private static void deletions(Iterable files, ArrayNode found) {
        for (Iterator each = files.iterator(); each.hasNext(); ) {
            DeleteFile file = (DeleteFile) each.next();
            ObjectNode described = found.addObject();
            boolean positions = file.content() == FileContent.POSITION_DELETES;
            described.put("data_file", positions ? file.referencedDataFile() : null);
            described.put("rows", file.recordCount());
            described.put("path", file.location());
            described.put("offset", file.contentOffset() == null ? 0L : file.contentOffset().longValue());
            described.put("length", file.contentSizeInBytes() == null ? 0L : file.contentSizeInBytes().longValue());
            described.put("size", file.fileSizeInBytes());
        }
    }

    private static boolean looksAs(TableMetadata one, TableMetadata other) {
        return one.currentSchemaId() == other.currentSchemaId()
                && one.defaultSpecId() == other.defaultSpecId()
                && one.defaultSortOrderId() == other.defaultSortOrderId();
    }

    /** Let a builder make these changes; each is optional. Columns come before what refers to them. */
    private static void apply(JsonNode changes, TableMetadata.Builder builder, Schema schema, SortOrder order) {
        JsonNode some = changes.get("format-version");
        if (some != null) {
            builder.upgradeFormatVersion(some.asInt());
        }
        for (Iterator each = elements(changes, "removed-refs"); each.hasNext(); ) {
            builder.removeRef(((JsonNode) each.next()).asText());
        }
        if (schema != null) {
            builder.setCurrentSchema(schema, changes.get("last-column-id").asInt());
        } else if ((some = changes.get("schema-id")) != null) {
            builder.setCurrentSchema(some.asInt());
        }
        if ((some = changes.get("spec-id")) != null) {
            builder.setDefaultPartitionSpec(some.asInt());
        }
        if (order != null) {
            builder.setDefaultSortOrder(order);
        } else if ((some = changes.get("sort-order-id")) != null) {
            builder.setDefaultSortOrder(some.asInt());
        }
        if ((some = changes.get("branches")) != null) {
            for (Iterator names = some.fieldNames(); names.hasNext(); ) {
                String name = (String) names.next();
                builder.setBranchSnapshot(some.get(name).asLong(), name);
            }
        }
        if ((some = changes.get("tags")) != null) {
            for (Iterator names = some.fieldNames(); names.hasNext(); ) {
                String name = (String) names.next();
                builder.setRef(name, SnapshotRef.tagBuilder(some.get(name).asLong()).build());
            }
        }
        if ((some = changes.get("properties")) != null) {
            builder.setProperties(strings(some));
        }
        Set removed = new HashSet();
        for (Iterator each = elements(changes, "removed-properties"); each.hasNext(); ) {
            removed.add(((JsonNode) each.next()).asText());
        }
        if (!removed.isEmpty()) {
            builder.removeProperties(removed);
        }
    }

    private static Iterator elements(JsonNode changes, String name) {
        JsonNode list = changes.get(name);
        return list == null ? new ArrayList().iterator() : list.elements();
    }

    private static Map strings(JsonNode node) {
        Map found = new HashMap();
        for (Iterator names = node.fieldNames(); names.hasNext(); ) {
            String name = (String) names.next();
            found.put(name, node.get(name).asText());
        }
        return found;
    }

    private static TableIdentifier identifier(String namespace, String name) {
        return TableIdentifier.of(Namespace.of(new String[] {namespace}), name);
    }

    /** Opens and creates tables of a catalogue. */
    public static class Opener {
        /** A table of the catalogue, null if there is none. */
        public TableCalls open(Catalog catalog, String namespace, String name) {
            TableIdentifier identifier = identifier(namespace, name);
            return catalog.tableExists(identifier) ? new TableCalls(catalog.loadTable(identifier)) : null;
        }

        public boolean isView(Catalog catalog, String namespace, String name) {
            return catalog instanceof ViewCatalog && ((ViewCatalog) catalog).viewExists(identifier(namespace, name));
        }

        /** Create a table in a namespace that exists; `place` null: the catalogue chooses its folder. */
        public TableCalls create(
                Catalog catalog, String namespace, String name, Schema schema, String properties, String place)
                throws IOException {
            TableIdentifier identifier = identifier(namespace, name);
            PartitionSpec none = PartitionSpec.unpartitioned();
            Map chosen = strings(JSON.readTree(properties));
            return new TableCalls(
                    place == null
                            ? catalog.createTable(identifier, schema, none, chosen)
                            : catalog.createTable(identifier, schema, none, place, chosen));
        }
    }
}
