package lakewarden;

import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;

import org.apache.paimon.Snapshot;
import org.apache.paimon.data.BinaryRow;
import org.apache.paimon.data.Timestamp;
import org.apache.paimon.io.CompactIncrement;
import org.apache.paimon.io.DataIncrement;
import org.apache.paimon.manifest.IndexManifestEntry;
import org.apache.paimon.manifest.ManifestEntry;
import org.apache.paimon.manifest.PartitionEntry;
import org.apache.paimon.shade.jackson2.com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.paimon.table.FileStoreTable;
import org.apache.paimon.table.sink.CommitMessage;
import org.apache.paimon.table.sink.CommitMessageImpl;
import org.apache.paimon.table.sink.CommitPreCallback;
import org.apache.paimon.types.DataField;
import org.apache.paimon.types.RowType;
import org.apache.paimon.utils.RowDataToObjectArrayConverter;

/** The partitions of a table, and dropping some of them. Compiled by Janino: no lambdas, no generics. */
public class PaimonPartitions {
  private static final ObjectMapper JSON = new ObjectMapper();

  /** The partitions of one snapshot. Python sees them as JSON and names them by their index here. */
  public static final class Found {
    public final long snapshot;
    public final List rows = new ArrayList();
    public final Map told = new LinkedHashMap();

    Found(long snapshot) {
      this.snapshot = snapshot;
    }

    public String described() throws Exception {
      return JSON.writeValueAsString(told);
    }
  }

  /** The files that one commit marks as deleted: data files, and the index files of the same partitions. */
  public static final class Planned {
    public final List messages = new ArrayList();
    public final Set partitions = new HashSet();
    public final Set indexFiles = new HashSet();
    public long files = 0;
    public long rows = 0;
    public long bytes = 0;

    public List messages() {
      return messages;
    }

    public long files() {
      return files;
    }

    public long rows() {
      return rows;
    }

    public long bytes() {
      return bytes;
    }
  }

  public Found read(FileStoreTable table, long snapshot) throws Exception {
    RowType type = table.store().partitionType();
    RowDataToObjectArrayConverter values = new RowDataToObjectArrayConverter(type);
    Found found = new Found(snapshot);
    List columns = new ArrayList();
    for (Iterator each = type.getFields().iterator(); each.hasNext(); ) {
      DataField field = (DataField) each.next();
      List column = new ArrayList();
      column.add(field.name());
      column.add(field.type().getTypeRoot().name());
      columns.add(column);
    }
    List partitions = new ArrayList();
    Iterator entries = table.store().newScan().withSnapshot(snapshot).readPartitionEntries().iterator();
    while (entries.hasNext()) {
      PartitionEntry entry = (PartitionEntry) entries.next();
      Map row = new HashMap();
      row.put("path", table.store().pathFactory().getPartitionString(entry.partition()));
      row.put("values", told(values.convert(entry.partition())));
      row.put("files", Long.valueOf(entry.fileCount()));
      row.put("rows", Long.valueOf(entry.recordCount()));
      row.put("bytes", Long.valueOf(entry.fileSizeInBytes()));
      row.put("changed", Long.valueOf(entry.lastFileCreationTime()));
      partitions.add(row);
      found.rows.add(entry.partition());
    }
    found.told.put("columns", columns);
    found.told.put("partitions", partitions);
    return found;
  }

  private static List told(Object[] values) {
    List found = new ArrayList();
    for (int i = 0; i < values.length; i++) {
      Object value = values[i];
      if (value instanceof Timestamp) {
        found.add(Long.valueOf(((Timestamp) value).toMicros()));
      } else if (value instanceof Byte || value instanceof Short || value instanceof Integer || value instanceof Long) {
        found.add(Long.valueOf(((Number) value).longValue()));
      } else {
        found.add(value == null ? null : value.toString());
      }
    }
    return found;
  }

  /** Every file that these partitions had in the snapshot in which they were found. */
  public Planned plan(FileStoreTable table, Found found, String placesJson) throws Exception {
    List places = (List) JSON.readValue(placesJson, List.class);
    Planned planned = new Planned();
    List partitions = new ArrayList();
    for (Iterator each = places.iterator(); each.hasNext(); ) {
      partitions.add(found.rows.get(((Number) each.next()).intValue()));
    }
    planned.partitions.addAll(partitions);
    Map groups = new LinkedHashMap();
    Iterator files =
        table.store().newScan().withSnapshot(found.snapshot).withPartitionFilter(partitions).plan().files().iterator();
    while (files.hasNext()) {
      ManifestEntry entry = (ManifestEntry) files.next();
      group(groups, entry.partition(), entry.bucket(), Integer.valueOf(entry.totalBuckets())).data.add(entry.file());
      planned.files++;
      planned.rows += entry.file().rowCount();
      planned.bytes += entry.file().fileSize();
    }
    Iterator index = index(table, table.snapshotManager().snapshot(found.snapshot), planned.partitions).iterator();
    while (index.hasNext()) {
      IndexManifestEntry entry = (IndexManifestEntry) index.next();
      group(groups, entry.partition(), entry.bucket(), null).index.add(entry.indexFile());
      planned.indexFiles.add(entry.indexFile().fileName());
    }
    for (Iterator each = groups.values().iterator(); each.hasNext(); ) {
      planned.messages.add(((Group) each.next()).message());
    }
    return planned;
  }

  /** The files to remove from one bucket. */
  private static final class Group {
    final BinaryRow partition;
    final int bucket;
    final Integer buckets;
    final List data = new ArrayList();
    final List index = new ArrayList();

    Group(BinaryRow partition, int bucket, Integer buckets) {
      this.partition = partition;
      this.bucket = bucket;
      this.buckets = buckets;
    }

    CommitMessage message() {
      List none = Collections.emptyList();
      DataIncrement gone = new DataIncrement(none, data, none, none, index);
      return new CommitMessageImpl(partition, bucket, buckets, gone, CompactIncrement.emptyIncrement());
    }
  }

  private static Group group(Map groups, BinaryRow partition, int bucket, Integer buckets) {
    List key = new ArrayList();
    key.add(partition);
    key.add(Integer.valueOf(bucket));
    key.add(buckets);
    Group found = (Group) groups.get(key);
    if (found == null) {
      found = new Group(partition, bucket, buckets);
      groups.put(key, found);
    }
    return found;
  }

  private static List index(FileStoreTable table, Snapshot snapshot, Set partitions) {
    List found = new ArrayList();
    if (snapshot.indexManifest() == null) {
      return found;
    }
    Iterator entries = table.store().newIndexFileHandler().readManifest(snapshot.indexManifest()).iterator();
    while (entries.hasNext()) {
      IndexManifestEntry entry = (IndexManifestEntry) entries.next();
      if (partitions.contains(entry.partition())) {
        found.add(entry);
      }
    }
    return found;
  }

  /**
   * On every attempt of a commit, the library checks that each data file still exists. It has no such check for
   * the index files of a bucket (deletion vectors, a hash index): it would drop the current ones, even if newly
   * written rows need them; so this code checks them.
   */
  public CommitPreCallback check(final FileStoreTable table, final Planned planned) {
    return new CommitPreCallback() {
      public void call(List base, List delta, List index, Snapshot next) {
        refuseOtherIndex(table, planned, next.id() - 1);
      }

      public void close() {}
    };
  }

  private static void refuseOtherIndex(FileStoreTable table, Planned planned, long base) {
    Set now = new HashSet();
    try {
      Iterator entries = index(table, table.snapshotManager().snapshot(base), planned.partitions).iterator();
      while (entries.hasNext()) {
        now.add(((IndexManifestEntry) entries.next()).indexFile().fileName());
      }
    } catch (RuntimeException unreadable) {
      throw new RuntimeException("Give up committing: the index files of these partitions cannot be read", unreadable);
    }
    if (!now.equals(planned.indexFiles)) {
      throw new RuntimeException("Give up committing: the index files of these partitions changed");
    }
  }
}
